"""What an artefact consists of and needs, as CycloneDX JSON."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from common.version import DISTRIBUTION
from scripts.releasing.archives import sha256
from scripts.releasing.dependencies import Needed, Package, metadata_of
from scripts.releasing.project import Release


def sbom_of(artefact: Path, needed: Needed, release: Release) -> str:
    """Return the document. It is the same each time for the same artefact and environment."""
    ours = _ourselves(artefact)
    bom = Bom(
        # Each document has a number of its own; this one follows from what it is about.
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{artefact.name}#{sha256(artefact)}"),
        metadata=BomMetaData(
            component=ours,
            timestamp=datetime.fromtimestamp(release.timestamp, UTC),
            properties=[Property(name="nsq-suite:commit", value=release.commit)],
        ),
        properties=[Property(name="nsq-suite:not-installed", value=it) for it in needed.missing],
    )
    components = {it.name: _component(it) for it in needed.packages}
    bom.components.update(components.values())
    bom.register_dependency(ours, _of(components, needed.direct))
    for package in needed.packages:
        bom.register_dependency(components[package.name], _of(components, package.needs))
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _of(components: dict[str, Component], names: Iterable[str]) -> list[Component]:
    return [components[name] for name in names if name in components]


def _ourselves(artefact: Path) -> Component:
    about = metadata_of(artefact)
    return Component(
        type=ComponentType.APPLICATION,
        name=DISTRIBUTION,
        version=about["Version"],
        bom_ref=artefact.name,
        description=about["Summary"],
        licenses=[LicenseFactory().make_from_string(about["License-Expression"])],
        purl=PackageURL("pypi", name=DISTRIBUTION, version=about["Version"], qualifiers={"file_name": artefact.name}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256(artefact))],
    )


def _component(package: Package) -> Component:
    return Component(
        name=package.name,
        version=package.version,
        bom_ref=f"{package.name}=={package.version}",
        description=package.about or None,
        scope=ComponentScope.REQUIRED if package.is_required else ComponentScope.OPTIONAL,
        licenses=[LicenseFactory().make_from_string(package.licence)],
        purl=PackageURL("pypi", name=package.name, version=package.version),
    )
