use rule prepare_texts as summarise with:
    input:
        unpack(needs("summarise")),
    output:
        runs=made("all_runs"),
        all_outcomes=made("all_outcomes"),
        curves=made("curves"),
        summary=made("summary"),
        markdown=shown("summary_md", "Tables", table="summary"),
        latex=made("summary_tex"),
    log:
        log("summary"),
    benchmark:
        benchmark("summary")
    localrule: True
    resources:
        **sized("summarise"),
    params:
        told=told("summarise"),


# What may be concluded at the margin, and how stable the orders of heads are.
use rule prepare_texts as claims with:
    input:
        unpack(needs("claims")),
    output:
        table=made("claims"),
        claims=made("claims_json"),
        markdown=shown("claims_md", "Claims", table="claims"),
        latex=made("claims_tex"),
    log:
        log("claims"),
    benchmark:
        benchmark("claims")
    localrule: True
    resources:
        **sized("claims"),
    params:
        told=told("claims"),


use rule prepare_texts as stability with:
    input:
        unpack(needs("stability")),
    output:
        table=made("stability"),
        markdown=shown("stability_md", "Tables", table="stability"),
        latex=made("stability_tex"),
    log:
        log("stability"),
    benchmark:
        benchmark("stability")
    localrule: True
    resources:
        **sized("stability"),
    params:
        told=told("stability"),


use rule prepare_texts as grid with:
    input:
        unpack(needs("grid")),
    output:
        table=made("grid"),
        markdown=shown("grid_md", "Tables", table="{grid}"),
        latex=made("grid_tex"),
        svg=shown("grid_svg", "Figures", figure="{grid}"),
        png=made("grid_png"),
        html=made("grid_html"),
    log:
        log("grid"),
    benchmark:
        benchmark("grid")
    wildcard_constraints:
        grid=STUDY.grid_names(drawn=True),
    localrule: True
    resources:
        **sized("grid"),
    params:
        told=told("grid"),


use rule prepare_texts as grid_without_figure with:
    input:
        unpack(needs("grid_without_figure")),
    output:
        table=made("grid"),
        markdown=shown("grid_md", "Tables", table="{grid}"),
        latex=made("grid_tex"),
    log:
        log("grid"),
    benchmark:
        benchmark("grid")
    wildcard_constraints:
        grid=STUDY.grid_names(drawn=False),
    localrule: True
    resources:
        **sized("grid_without_figure"),
    params:
        told=told("grid_without_figure"),


use rule prepare_texts as score_and_drop with:
    input:
        unpack(needs("score_and_drop")),
    output:
        table=made("drops"),
        markdown=shown("drops_md", "Tables", table="score_and_drop"),
        latex=made("drops_tex"),
        svg=shown("drops_svg", "Figures", figure="score_and_drop"),
        png=made("drops_png"),
        html=made("drops_html"),
    log:
        log("drops"),
    benchmark:
        benchmark("drops")
    localrule: True
    resources:
        **sized("score_and_drop"),
    params:
        told=told("score_and_drop"),


use rule prepare_texts as ladder with:
    input:
        unpack(needs("ladder")),
    output:
        table=made("ladder"),
        markdown=shown("ladder_md", "Tables", table="ladder"),
        latex=made("ladder_tex"),
        svg=shown("ladder_svg", "Figures", figure="ladder"),
        png=made("ladder_png"),
        html=made("ladder_html"),
    log:
        log("ladder"),
    benchmark:
        benchmark("ladder")
    localrule: True
    resources:
        **sized("ladder"),
    params:
        told=told("ladder"),


# Our numbers beside those that the paper prints.
use rule prepare_texts as published with:
    input:
        unpack(needs("published")),
    output:
        table=made("published"),
        markdown=shown("published_md", "Tables", table="published"),
        latex=made("published_tex"),
    log:
        log("published"),
    benchmark:
        benchmark("published")
    localrule: True
    resources:
        **sized("published"),
    params:
        told=told("published"),


# How many heads look along the diagonal, at special tokens, or at one slot.
use rule prepare_texts as describe_patterns with:
    input:
        unpack(needs("describe_patterns")),
    output:
        table=made("patterns"),
        markdown=shown("patterns_md", "Tables", table="{model}, {laid_out}"),
        latex=made("patterns_tex"),
        svg=shown("patterns_svg", "Figures", figure="{model}, {laid_out}"),
        png=made("patterns_png"),
        html=made("patterns_html"),
    log:
        log("patterns"),
    benchmark:
        benchmark("patterns")
    localrule: True
    resources:
        **sized("describe_patterns"),
    params:
        told=told("describe_patterns"),


# Everything on one page.
use rule prepare_texts as page with:
    input:
        unpack(needs("page")),
    output:
        page=shown("page", "Report", page="everything"),
    log:
        log("page"),
    benchmark:
        benchmark("page")
    localrule: True
    resources:
        **sized("page"),
    params:
        told=told("page"),
