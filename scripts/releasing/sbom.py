"""What an artefact consists of and needs, as CycloneDX JSON.

`cyclonedx-py environment` (7.5) knows a whole environment, with ruff and pytest in it, and neither the hash of a wheel nor
what only an extra needs nor Debian's packages in an image; so we fill the model of its library ourselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from nsqcommon.version import DISTRIBUTION
from scripts.releasing.archives import sha256
from scripts.releasing.dependencies import Needed, Package, metadata_of
from scripts.releasing.images import Image
from scripts.releasing.project import Release


def sbom_of(artefact: Path, needed: Needed, release: Release) -> str:
    """Return the document. It is the same each time for the same artefact and environment."""
    bom = _document(_ourselves(artefact), sha256(artefact), needed.packages, needed.direct, release)
    bom.properties.update(Property(name="nsq-suite:not-installed", value=it) for it in needed.missing)
    return _as_json(bom)


def image_sbom(image: Image, packages: Sequence[Package], release: Release) -> str:
    """Return the document. It names the image that it was made of, and is as different as two builds of it."""
    ours = Component(
        type=ComponentType.CONTAINER,
        name=f"{DISTRIBUTION}/{image.target}",
        version=release.version,
        bom_ref=image.name,
        purl=PackageURL("docker", DISTRIBUTION, image.target, release.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=image.number.removeprefix("sha256:"))],
    )
    return _as_json(_document(ours, image.number, packages, [it.name for it in packages], release))


def _document(
    ours: Component, checksum: str, packages: Sequence[Package], direct: Iterable[str], release: Release
) -> Bom:
    bom = Bom(
        # Each document has a number of its own; this one follows from what it is about.
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{ours.bom_ref.value}#{checksum}"),
        metadata=BomMetaData(
            component=ours,
            timestamp=datetime.fromtimestamp(release.timestamp, UTC),
            properties=[Property(name="nsq-suite:commit", value=release.commit)],
        ),
    )
    # An image may have a package twice, its own and the base image's. Ours come first, and need each other.
    components = [_component(it) for it in packages]
    by_name = {it.name: it for it in reversed(components)}
    bom.components.update(components)
    bom.register_dependency(ours, _of(by_name, direct))
    for package, component in zip(packages, components, strict=True):
        bom.register_dependency(component, _of(by_name, package.needs))
    return bom


def _as_json(bom: Bom) -> str:
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _of(components: dict[str, Component], names: Iterable[str]) -> list[Component]:
    return [components[name] for name in names if name in components]


def _ourselves(artefact: Path) -> Component:
    about = metadata_of(artefact)
    return Component(
        type=ComponentType.APPLICATION,
        name=about["Name"],
        version=about["Version"],
        bom_ref=artefact.name,
        description=about["Summary"],
        licenses=[LicenseFactory().make_from_string(about["License-Expression"])],
        purl=PackageURL("pypi", name=about["Name"], version=about["Version"], qualifiers={"file_name": artefact.name}),
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
        purl=_purl(package),
    )


def _purl(package: Package) -> PackageURL:
    namespace = "debian" if package.purl_type == "deb" else None
    return PackageURL(package.purl_type, namespace, package.name, package.version)
