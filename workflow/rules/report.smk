# Everything on one page. It reads what the tables are made of, and tells of every job, so it comes last.
rule report:
    input:
        artefacts=GRAPH.artefacts(),
        analyses=GRAPH.analyses(),
        runs="<results>/tables/runs.parquet",
        summary="<results>/tables/summary.parquet",
        latex="<results>/tables/summary.tex",
        page=[str(Path(ROOT, "papa/pages", f"report.{form}")) for form in ("html", "css", "js")],
        code=modules("report"),
    output:
        page=report(
            "<results>/report/index.html",
            caption="../report/page.rst",
            category="Report",
            labels={"page": "everything"},
        ),
    log:
        "<results>/logs/report/index.log",
    benchmark:
        "<results>/report/index.benchmark.tsv"
    localrule: True
    conda:
        "../envs/papa.yaml"
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(30),
    params:
        settings={"results": f"results/{config['name']}", "config": PARAMETERS.told()},
    script:
        "../scripts/report.py"
