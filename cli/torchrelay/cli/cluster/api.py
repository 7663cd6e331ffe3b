"""The resources of torchrelay in a cluster, as kubectl's own configuration leads to them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.kube.kube_names import GROUP, VERSION

try:
    import httpx2
    from lightkube import AsyncClient, KubeConfig
    from lightkube.core.exceptions import ApiError, ConfigError, LoadResourceError
    from lightkube.generic_resource import create_global_resource, create_namespaced_resource, get_generic_resource
    from lightkube.types import PatchType
except ImportError as e:
    raise UserError(
        f"kubectl torchrelay needs {e.name}, which is not installed\nhint: pip install 'torchrelay[kubernetes]'"
    ) from e

Object = dict[str, Any]
NOT_FOUND = 404
FORBIDDEN = 403
GONE = 410
"""A watch from a version that the API server does not remember."""


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resource. `words`: what people call one; `plural` and `group`: as kubectl has them."""

    words: str
    plural: str
    resource: Any
    group: str = GROUP

    @property
    def full(self) -> str:
        """Return the name of the kind as kubectl takes it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


JOBS = ResourceKind("job", "trainingjobs", create_namespaced_resource(GROUP, VERSION, "TrainingJob", "trainingjobs"))
MIGRATIONS = ResourceKind(
    "migration", "migrations", create_namespaced_resource(GROUP, VERSION, "Migration", "migrations")
)
POOLS = ResourceKind(
    "pool of spares", "sparepools", create_namespaced_resource(GROUP, VERSION, "SparePool", "sparepools")
)
QUARANTINES = ResourceKind(
    "quarantine", "quarantines", create_global_resource(GROUP, VERSION, "Quarantine", "quarantines")
)
LEASES = ResourceKind(
    "lease",
    "leases",
    create_namespaced_resource("coordination.k8s.io", "v1", "Lease", "leases"),
    "coordination.k8s.io",
)
NODES = ResourceKind(
    "node", "nodes", get_generic_resource("v1", "Node") or create_global_resource("", "v1", "Node", "nodes"), ""
)
EVENTS = ResourceKind(  # of the core group lightkube makes a class once in a process, and the controller has one, too
    "event",
    "events",
    get_generic_resource("v1", "Event") or create_namespaced_resource("", "v1", "Event", "events"),
    "",
)


class Cluster:
    """A connection to a cluster. `namespace`: empty for that of kubectl's context. `everywhere`: look at all namespaces.

    Each call raises UserError, with what to do, if the API server says no, and FatalError if it cannot be reached.
    """

    def __init__(self, namespace: str = "", context: str = "", everywhere: bool = False) -> None:
        try:
            config = KubeConfig.from_env().get(context or None)
            if config is None:
                raise UserError("no cluster is configured\nhint: kubectl config get-contexts")
            self._client = AsyncClient(
                config, namespace=namespace or None, field_manager="kubectl-torchrelay", trust_env=True
            )
        except (ConfigError, LoadResourceError) as e:
            raise UserError(f"no way to a cluster: {e}\nhint: kubectl config get-contexts") from e
        self.namespace = self._client.namespace
        self._everywhere = everywhere

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, kind: ResourceKind, name: str) -> Object:
        """Return the object of this name. Raises UserError if there is none."""
        with self._errors("get", kind, name):
            return dict(await self._client.get(kind.resource, name))

    async def has_node(self, name: str) -> bool:
        """Return whether the cluster has such a node; True for whoever may not look."""
        with self._errors("get", NODES):
            try:
                await self._client.get(NODES.resource, name)
            except ApiError as e:
                return e.status.code != NOT_FOUND
        return True

    async def all(self, kind: ResourceKind, fields: Mapping[str, str] | None = None) -> list[Object]:
        """Return all objects of a kind. `fields`: a selector."""
        return (await self._list(kind, fields))[0]

    async def states(
        self, kind: ResourceKind, fields: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Object], None]:
        """Yield all objects: as they are now, and again after each change."""
        where = self._where(kind, fields)
        while True:
            listed, version = await self._list(kind, fields)
            found = {_place(o): o for o in listed}
            yield [*found.values()]
            with self._errors("watch", kind):
                try:
                    async for what, changed in self._client.watch(
                        kind.resource, resource_version=version, on_error=_raise, **where
                    ):
                        place = _place(changed)
                        if what == "DELETED":
                            found.pop(place, None)
                        else:
                            found[place] = dict(changed)
                        yield [*found.values()]
                except ApiError as e:
                    if e.status.code != GONE:
                        raise
                except httpx2.RemoteProtocolError:  # the API server ends a watch now and then
                    pass

    async def create(self, kind: ResourceKind, name: str, spec: Object) -> Object:
        manifest = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind.resource.__name__, "spec": spec}
        meta: Object = {"name": name}
        if kind is not QUARANTINES:
            meta["namespace"] = self.namespace
        with self._errors("create", kind, name):
            return dict(await self._client.create(kind.resource({**manifest, "metadata": meta})))

    async def patch(self, kind: ResourceKind, name: str, patch: Object) -> Object:
        with self._errors("patch", kind, name):
            return dict(await self._client.patch(kind.resource, name, patch, patch_type=PatchType.MERGE))

    async def delete(self, kind: ResourceKind, name: str) -> None:
        with self._errors("delete", kind, name):
            await self._client.delete(kind.resource, name)

    async def _list(self, kind: ResourceKind, fields: Mapping[str, str] | None) -> tuple[list[Object], str]:
        with self._errors("list", kind):
            listed = self._client.list(kind.resource, **self._where(kind, fields))
            return [dict(one) async for one in listed], str(listed.resourceVersion)

    def _where(self, kind: ResourceKind, fields: Mapping[str, str] | None) -> dict[str, Any]:
        everywhere = {"namespace": "*"} if self._everywhere and kind is not QUARANTINES else {}
        return {**everywhere, **({"fields": dict(fields)} if fields else {})}

    @contextlib.contextmanager
    def _errors(self, verb: str, kind: ResourceKind, name: str = "") -> Iterator[None]:
        where = "" if kind is QUARANTINES else f" in namespace {self.namespace}"
        try:
            yield
        except ApiError as e:
            if e.status.code == NOT_FOUND and name:
                hint = f"kubectl get {kind.full}" + ("" if kind is QUARANTINES else f" -n {self.namespace}")
                raise UserError(f"there is no {kind.words} {name}{where}\nhint: {hint}") from e
            if e.status.code == NOT_FOUND:
                raise UserError(
                    f"this cluster knows no {kind.full}: torchrelay is not installed in it\n"
                    f"hint: kubectl get crd {kind.full}"
                ) from e
            hint = f"\nhint: kubectl auth can-i {verb} {kind.full}" if e.status.code == FORBIDDEN else ""
            raise UserError(f"the cluster refuses: {e.status.message or e}{hint}") from e
        except (httpx2.HTTPError, OSError) as e:
            raise FatalError(f"the API server cannot be reached: {e}\nhint: kubectl cluster-info") from e


def _place(one: Object) -> tuple[str, str]:
    """Return namespace and name: two namespaces can have a job of the same name."""
    return one["metadata"].get("namespace", ""), one["metadata"]["name"]


def _raise(error: Exception, count: int) -> Any:
    raise error
