"""Trigonometric and hyperbolic functions, and their inverses, of each element."""

from __future__ import annotations

from xdsl.irdl import irdl_op_definition

from penstock.dialects.graph.elementwise import UnaryOp


@irdl_op_definition
class SinOp(UnaryOp):
    """The sine of x, in radians."""

    name = "graph.sin"


@irdl_op_definition
class CosOp(UnaryOp):
    """The cosine of x, in radians."""

    name = "graph.cos"


@irdl_op_definition
class TanOp(UnaryOp):
    """The tangent of x, in radians."""

    name = "graph.tan"


@irdl_op_definition
class AsinOp(UnaryOp):
    """The inverse sine, in radians; NaN outside -1 to 1."""

    name = "graph.asin"


@irdl_op_definition
class AcosOp(UnaryOp):
    """The inverse cosine, in radians; NaN outside -1 to 1."""

    name = "graph.acos"


@irdl_op_definition
class AtanOp(UnaryOp):
    """The inverse tangent, in radians."""

    name = "graph.atan"


@irdl_op_definition
class SinhOp(UnaryOp):
    """The hyperbolic sine."""

    name = "graph.sinh"


@irdl_op_definition
class CoshOp(UnaryOp):
    """The hyperbolic cosine."""

    name = "graph.cosh"


@irdl_op_definition
class AsinhOp(UnaryOp):
    """The inverse hyperbolic sine."""

    name = "graph.asinh"


@irdl_op_definition
class AcoshOp(UnaryOp):
    """The inverse hyperbolic cosine; NaN below 1."""

    name = "graph.acosh"


@irdl_op_definition
class AtanhOp(UnaryOp):
    """The inverse hyperbolic tangent; NaN outside -1 to 1."""

    name = "graph.atanh"
