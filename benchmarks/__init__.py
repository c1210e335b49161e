"""Scripts that measure papa; README.md lists them. An old pyarrow installs a package of the same name."""
