"""Facts of single statements: layouts, bounds, claimed coordinates."""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.kir.buffers import Buffer
from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Access, is_callers, is_private, strided, terms
from loopnest.proofs.quasi_affine import NotAffine, Poly, constant, plus, times
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import NOWHERE, Instances, NotProved, about
from loopnest.proofs.template_matching import Agreement, Combined
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Const, Expr, Op
from loopnest.tensor.math_snapshot import MathTensor


class StatementClaims:
    """Prove what concerns one statement at a time.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.algebra = setting, setting.algebra

    def prove(self) -> None:
        """Prove layouts, bounds and claims of the whole program."""
        given = strided(self.setting.model.program)
        for buffer in self.setting.model.buffers():
            if buffer not in given:  # the caller's, of which elements may lie in one place
                self._layout(buffer)
        self._parameters()
        for access in self.setting.model.accesses:
            with about(access.site):
                if self.setting.model.missing(access):
                    raise NotProved("scope")
                self._bounds(self.setting.points(access), access)
        for work in self.setting.works:
            with about(work.site):
                self._work(work)

    # Layouts

    def _layout(self, buffer: Buffer) -> None:
        """Show that no two elements share a place, and that all lie inside.

        Taken by growing stride, each stride must be at least the reach of those before it.
        """
        poly = self.algebra.poly
        rest = [
            (poly(e, {}), poly(s, {})) for e, s in zip(buffer.shape, buffer.strides, strict=True)
        ]
        rest = [(e, s) for e, s in reversed(rest) if e != constant(1)]
        reach: Poly = constant(1)
        while rest:
            found = next((n for n, (_, s) in enumerate(rest) if s == reach), None)
            if found is None:
                found = next((n for n, (_, s) in enumerate(rest) if self._at_least(s, reach)), None)
            if found is None:
                raise NotProved(f"the layout of {buffer.name}")
            extent, stride = rest.pop(found)
            # Elements of all dimensions so far lie below stride * extent, since the ones before lie
            # below the stride.
            reach = times(stride, extent)
        if not self._at_least(poly(buffer.size, {}), reach):
            raise NotProved(f"the size of {buffer.name}")
        if buffer.memory is Memory.SHARED and not self._holds(
            self.setting.model.declared_bytes[buffer],
            times(poly(buffer.size, {}), constant(buffer.dtype.size)),
        ):
            raise NotProved(f"the shared memory of {buffer.name}")
        self._swizzles(buffer)

    def _holds(self, room: Expr, need: Poly) -> bool:
        """Whether declared bytes are at least as many as a buffer needs, for all sizes.

        A size rounded up is at least that size, whether the bytes were rounded or the size itself.
        """
        if self._at_least(self.algebra.poly(room, {}), need):
            return True
        match room:
            case Op(op="max", args=parts):
                return any(self._holds(part, need) for part in parts)
            case Op(op="mul", args=(Op(op="ceildiv", args=(part, by)), again)) if by is again:
                return self._holds(part, need)
            case _:
                return False

    def _swizzles(self, buffer: Buffer) -> None:
        """Show that a swizzle permutes the elements of its tile, by trying all of them."""
        for a, b in buffer.swizzles:
            if a == b or not is_swizzle(buffer.shape[a], buffer.shape[b]):
                raise NotProved(f"the swizzle of {buffer.name}")

    def _parameters(self) -> None:
        """Show that inputs and outputs are arrays of the math's shape, row-major, without gaps."""
        poly = self.algebra.poly
        for param in self.setting.model.program.params:
            if param.buffer is None or param.kind not in ("input", "output"):
                continue
            tensor = self.setting.math.tensor(param.name)
            if tensor is None:
                raise NotProved(f"parameter {param.name}")
            wanted = [poly(a.extent, {}) for a in tensor.logical]
            if wanted != [poly(s, {}) for s in param.shape]:
                raise NotProved(f"the shape of {param.name}")
            shape, step = wanted or [constant(1)], constant(1)
            steps: list[Poly] = []
            for extent in reversed(shape):
                steps.insert(0, step)
                step = times(step, extent)
            buffer = param.buffer
            if tensor.strides is not None:
                steps = [poly(stride, {}) for stride in tensor.strides]
                step = constant(1)
                for extent, stride in zip(shape, steps, strict=True):
                    step = plus(step, times(plus(extent, constant(-1)), stride))
            found = [[poly(e, {}) for e in part] for part in (buffer.shape, buffer.strides)]
            if found != [shape, steps] or poly(buffer.size, {}) != step:
                raise NotProved(f"the layout of {param.name}")

    # Bounds

    def _bounds(self, at: Instances, access: Access) -> None:
        guards = self.setting.guards(access.guards)
        shape = access.buffer.shape
        # Inside of the buffer is enough for an offset, if isl can say so; else the indices along
        # its axes are asked, which is more.
        if access.flat:
            size = self.algebra.poly(access.buffer.size, {})
            try:
                self._inside(at, self.setting.polys(access.index), [size], guards, access)
                return
            except NotAffine:
                pass
        index = self.setting.element(access)
        if access.buffer in self.setting.spaces.dense.shapes:
            self._inside(at, index, self.setting.spaces.dense.shapes[access.buffer], guards, access)
            return
        extents = [self.algebra.poly(s, {}) for s in shape]
        parts = self.setting.parted.bounded(access.buffer, index, extents)
        self._inside(at, *parts, guards, access)

    def _inside(
        self,
        at: Instances,
        index: Sequence[Poly],
        extents: Sequence[Poly],
        guards: list[str],
        access: Access,
    ) -> None:
        good = []
        for value, extent in zip(index, extents, strict=True):
            good.append(f"{self.setting.text(value)} >= 0")
            good.append(self.algebra.compare("lt", value, extent, str))
        outside = f"not ({' and '.join([f'({g})' for g in good])})"
        self.setting.require_present(good, at.variables)
        found = self.setting.among(at, [*guards, outside])
        self.setting.require_empty(found, f"bounds of {access}")

    # Claims

    def _work(self, work: Work) -> None:
        at = self.setting.sites[work.site]
        exact = self.setting.spaces.is_exact(work.site)
        if not exact and not is_private(work.store.storage) and not self._bounded(work, at):
            raise NotProved("a merged index without a test")
        for wanted, found in work.equalities:
            self.same(at, *self.setting.polys((wanted, found), work.site))
        for agreement in work.conditions:
            self._agree(at, agreement)
        if is_callers(work.store.storage) and work.kind not in ("init", "partial"):
            element = self.setting.claimed(work)
            self.same_element(at, work.write, work.tensor, element)
            if work.store.storage in self.setting.spaces.dense.shapes:
                self._in_domain(at, work.tensor, element)
        if any(isinstance(n.operand, Combined) for n in work.needs) and not exact:
            raise NotProved("a merged index over threads")

    def _agree(self, at: Instances, agreement: Agreement) -> None:
        """Show that a condition says what that of the math does at every point."""
        guards = self.setting.guards(agreement.guards)
        a, b = self.setting.guards(((agreement.wanted, True), (agreement.found, True)))
        texts = [*guards, f"(({a}) and not ({b})) or (({b}) and not ({a}))"]
        self.setting.require_present(texts, at.variables)
        found = self.setting.among(at, texts)
        self.setting.require_empty(found, f"the condition '{agreement.found}'")

    def same(self, at: Instances, a: Poly, b: Poly) -> None:
        """Show that two indices are equal at every point."""
        if a == b:
            return
        text = self.algebra.compare("ne", a, b, str)
        self.setting.require_present([text], at.variables)
        found = self.setting.among(at, [text])
        self.setting.require_empty(found, "a claim")

    def same_element(
        self, at: Instances, access: Access, tensor: MathTensor, element: Sequence[Poly]
    ) -> None:
        """Show that an access is to an element of a tensor, both given by logical indices."""
        dense = self.setting.spaces.dense
        if access.buffer in dense.shapes:
            # Two elements of dense memory are one where their offsets are.
            offset = dense.offset(access.buffer, element)
            if offset != dense.whole(access):
                raise NotProved(f"an element of {tensor.name}")
            return
        index = self.setting.element(access)
        if not element:
            element = [constant(0)]
        if len(index) != len(element):
            raise NotProved(f"the shape of {tensor.name}")
        for a, b in zip(index, element, strict=True):
            self.same(at, a, b)

    def _in_domain(self, at: Instances, tensor: MathTensor, element: Sequence[Poly]) -> None:
        """Show that each index of a claimed element lies within its axis.

        An offset inside of the array does not show it: ``(0, C)`` is where ``(1, 0)`` lies.
        """
        good = []
        for p, axis in zip(element, tensor.logical, strict=True):
            good.append(f"{self.setting.text(p)} >= 0")
            extent = self.algebra.poly(axis.extent, {})
            good.append(self.algebra.compare("lt", p, extent, str))
        self.setting.require_present(good, at.variables)
        found = self.setting.among(at, [f"not ({' and '.join([f'({g})' for g in good])})"])
        self.setting.require_empty(found, f"the domain of {tensor.name}")

    def _bounded(self, work: Work, at: Instances) -> bool:
        """Whether the tests around a store bound each merged index by the sum's own extent.

        Then the points that the digits add lie outside of the tests.
        """
        for group in self.setting.spaces.groups:
            if group.digits[0] not in at.variables or group.exact is not None:
                continue
            top: Poly = constant(1)
            for member in group.members:
                top = times(top, self.setting.spaces.extent[member])
            limits = [
                self.algebra.poly(term.args[1], self.setting.env)
                for condition, wanted in work.site.guards
                if wanted
                for term in terms(condition)
                if isinstance(term, Op)
                and term.op == "lt"
                and self.algebra.poly(term.args[0], self.setting.env) == group.whole
            ]
            if not any(self._at_least(top, limit) for limit in limits):
                return False
        return True

    def _at_least(self, top: Poly, limit: Poly) -> bool:
        """Whether `top` is never below `limit`, for all sizes."""
        if top == limit:
            return True
        try:
            below = self.algebra.compare("lt", top, limit, str)
            return bool(self.setting.among(NOWHERE, [below]).is_empty())
        except NotAffine:
            return False


def is_swizzle(a: object, b: object) -> bool:
    """Whether ``(a, b) -> (a, b ^ a % size of b)`` permutes a tile, by trying all elements."""
    if not isinstance(a, Const) or not isinstance(b, Const):
        return False
    rows, columns = int(a.value), int(b.value)
    places = {(i, j ^ (i % columns)) for i in range(rows) for j in range(columns)}
    return len(places) == rows * columns and all(j < columns for _, j in places)
