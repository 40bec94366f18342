"""Opens catalogs of Iceberg tables, and configures pyiceberg's access to the tables' stores. Driver only.

Settings take precedence in this order:

    properties of the catalog > options `storage.*` > pyiceberg's own configuration > the environment

Keys of the environment are only used if the others have none, because a session token from one source doesn't go with a
secret from another.

We only know a table's store once the catalog is open. So pyiceberg gets the properties of all stores, and uses the ones
of the table's store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config

from pyspark_nsq.stores.places import BadPlace, Scheme, StoreAccess, access_to
from pyspark_nsq.tables.iceberg_target import CatalogName

_TABLES_OF_A_CATALOG: Final = 2  # pyiceberg makes them in a new SQL catalog; two jobs that begin at once both try
_THERE_BY_NOW: Final = "already exists"  # the database's answer to the second of them
_KEYS: Final = frozenset(  # names of properties for authentication
    (
        *("access-key-id", "secret-access-key", "session-token", "profile-name", "role-arn", "anonymous", "signer"),
        *("account-key", "sas-token", "connection-string", "credential", "client-secret", "token", "anon"),
    )
)


def open_catalog(name: CatalogName) -> Catalog:
    """Open a catalog, even if another job is creating its tables at the same time."""
    load = partial(load_catalog, name.name or None, **name.properties)  # without a name, pyiceberg's default
    for _ in range(_TABLES_OF_A_CATALOG):
        try:
            return load()
        except Exception as error:  # SQLAlchemy's, which may not be installed, so we can't name its types here
            if _THERE_BY_NOW not in str(error):
                raise
    return load()


def with_stores(
    catalog: CatalogName, storage: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> CatalogName:
    """Return the catalog with the properties for pyiceberg to reach the files of its tables. Raise BadPlace."""
    access = access_to(Scheme.AZURE, storage, {})
    if access.access_key:
        access_to(Scheme.S3, storage, {})  # raises if the secret is missing
    above = {**_of_all_stores(dict.fromkeys(_PROPERTIES_OF, access)), **catalog.properties}
    config = Config()
    configured = config.get_catalog_config(catalog.name or config.get_default_catalog_name()) or {}
    below = _not_said(_of_environment(environ), [*configured, *above])
    return CatalogName(catalog.name, {**below, **above})


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for scheme in _PROPERTIES_OF:
        with suppress(BadPlace):  # a table in this store gets the error from its own place
            found[scheme] = access_to(scheme, {}, environ)
    return _of_all_stores(found)


def _not_said(found: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the properties that these names don't set already.

    A key is left out if its store has any key among them.
    """
    said = {_store_and_word(name) for name in names}
    keyed = {store for store, word in said if word in _KEYS}
    left = {}
    for name, text in found.items():
        store, word = _store_and_word(name)
        if (store, word) not in said and not (word in _KEYS and store in keyed):
            left[name] = text
    return left


def _store_and_word(name: str) -> tuple[str, str]:
    store, _, word = name.partition(".")
    return "s3" if store == "client" else store, word  # pyiceberg accepts both prefixes


def _of_all_stores(found: Mapping[Scheme, StoreAccess]) -> dict[str, str]:
    properties = [_PROPERTIES_OF[scheme](access) for scheme, access in found.items()]
    return {name: text for it in properties for name, text in it.items() if text}


def _of_s3(access: StoreAccess) -> dict[str, str]:
    keys = {
        "s3.access-key-id": access.access_key,
        "s3.secret-access-key": access.secret_key,
        "s3.session-token": access.token,
    }
    return {
        "s3.endpoint": access.endpoint,
        "s3.region": access.region,
        "s3.force-virtual-addressing": "true" if access.path_style is False else "",
        "s3.anonymous": "true" if access.anonymous else "",
        **(keys if access.access_key else {}),
    }


def _of_google(access: StoreAccess) -> dict[str, str]:
    return {"gcs.service.host": access.endpoint}


def _of_azure(access: StoreAccess) -> dict[str, str]:
    scheme, _, host = access.endpoint.partition("://")
    keys = {"adls.account-key": access.secret_key, "adls.sas-token": access.token}
    return {
        "adls.blob-storage-scheme": scheme,
        "adls.blob-storage-authority": host,
        "adls.dfs-storage-scheme": scheme,
        "adls.dfs-storage-authority": host,
        **({} if access.access_key else keys),
    }


_PROPERTIES_OF: Final[Mapping[Scheme, Callable[[StoreAccess], dict[str, str]]]] = {
    Scheme.S3: _of_s3,
    Scheme.GOOGLE: _of_google,
    Scheme.AZURE: _of_azure,
}
