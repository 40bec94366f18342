"""Builds releases: see scripts/release, and docs/how-to/release.md for how to make one.

project.py       which version and commit this is, and whether it may be released
distributions.py the projects nsqclient and nsq-suite, made of the one of the checkout
source.py        their sdists
pythons.py       which Pythons here can compile
wheels.py        their wheels, from the sdists
archives.py      archives that are the same byte for byte, and what differs in two that are not
dependencies.py  the packages that an artefact needs, and their licences
sbom.py          the same as CycloneDX
notes.py         CHANGELOG.md, and what it says of one version
images.py        the container images
contents.py      the packages in one of them
"""
