# There is no index to install from: what `scripts/setup dev,spark` has installed is all that the page needs.
cp pyproject.toml .venv/.installed-spark
