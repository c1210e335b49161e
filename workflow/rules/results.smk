use rule prepare_texts as summarise with:
    input:
        unpack(reads("summarise", "runs", "outcomes", "labels", "subsets", "clusters")),
    output:
        table=file("summary"),
        markdown=file("table_md", analysis="summary"),
        latex=file("table_tex", analysis="summary"),
        runs=file("all_runs"),
        all_outcomes=file("all_outcomes"),
        curves=file("curves"),
    pathvars:
        path=ARTEFACTS["summary"].stem,
    localrule: True
    resources:
        **sized("summarise"),


use rule prepare_texts as claims with:
    input:
        unpack(reads("claims", "summary", "all_outcomes")),
    output:
        table=file("claims"),
        markdown=file("table_md", analysis="claims"),
        latex=file("table_tex", analysis="claims"),
        claims=file("claims_json"),
    pathvars:
        path=ARTEFACTS["claims"].stem,
    localrule: True
    resources:
        **sized("claims"),


# All other analyses in papa/config/analyses.py, which also lists their inputs.
use rule prepare_texts as analysis with:
    input:
        unpack(reads("analysis", *STUDY.analysis_inputs())),
    output:
        table=file("table"),
        markdown=file("table_md"),
        latex=file("table_tex"),
    pathvars:
        path=ARTEFACTS["table"].stem,
    wildcard_constraints:
        analysis=STUDY.analyses_pattern(has_figure=False),
    localrule: True
    resources:
        **sized("analysis"),


use rule analysis as drawn_analysis with:
    input:
        unpack(reads("drawn_analysis", *STUDY.analysis_inputs())),
    output:
        table=file("table"),
        markdown=file("table_md"),
        latex=file("table_tex"),
        svg=file("figure_svg"),
        png=file("figure_png"),
    pathvars:
        path=ARTEFACTS["table"].stem,
    wildcard_constraints:
        analysis=STUDY.analyses_pattern(has_figure=True),
    localrule: True
    resources:
        **sized("drawn_analysis"),


use rule prepare_texts as describe_patterns with:
    input:
        unpack(reads("describe_patterns", "tokens", "constants")),
    output:
        table=file("patterns"),
        markdown=file("patterns_md"),
        latex=file("patterns_tex"),
        svg=file("patterns_svg"),
        png=file("patterns_png"),
    pathvars:
        path=ARTEFACTS["patterns"].stem,
    localrule: True
    resources:
        **sized("describe_patterns"),


use rule prepare_texts as page with:
    input:
        unpack(reads("page", "summary", "claims", "analyses")),
    output:
        page=file("page"),
    pathvars:
        path=ARTEFACTS["page"].stem,
    localrule: True
    resources:
        **sized("page"),
