# SPDX-License-Identifier: Apache-2.0
"""A list of ``out=`` overloads that write exactly their operator's result into the given memory.

Some overloads of torch do not (``huber_loss.out`` resizes a mean to the inputs' size), so each was tested with torch's
own sample inputs in all dtypes. python/tests/graphs/test_graphs_out_variants.py runs the tests, and prints the list.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def out_variant(operator: Any) -> tuple[Any, str] | None:
    """Returns the tested overload that writes the operator's result into given memory, and the name of its argument."""
    found = candidate(operator)
    return found if found is not None and name_of(found[0]) in PROVED else None


def candidate(operator: Any) -> tuple[Any, str] | None:
    """Returns the overload with the operator's arguments and one ``out`` argument, and the name of that argument."""
    if not isinstance(operator, torch._ops.OpOverload) or operator._schema.is_mutable:
        return None
    wanted = [(a.name, str(a.type)) for a in operator._schema.arguments]
    for name in operator.overloadpacket.overloads():
        variant = getattr(operator.overloadpacket, name)
        outs = [a.name for a in variant._schema.arguments if a.is_out]
        others = [(a.name, str(a.type)) for a in variant._schema.arguments if not a.is_out]
        if len(outs) == 1 and others == wanted:
            return variant, outs[0]
    return None


def name_of(overload: Any) -> str:
    """Returns the name of the overload, e.g. ``aten::add.out``."""
    schema = overload._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


_NAMES = """
_adaptive_avg_pool2d.out _adaptive_avg_pool3d.out _cdist_forward.out _chunk_cat.out _conj_physical.out
_euclidean_dist.out _fft_c2c.out _fft_c2r.out _fft_r2c.out _histogramdd_from_bin_cts.out
_histogramdd_from_bin_tensors.out _log_softmax.out _pdist_forward.out _scaled_mm.out _scaled_mm_v2.out _softmax.out
_softmax_backward_data.out _trilinear.out _upsample_bilinear2d_aa.out _upsample_nearest_exact1d.out
_upsample_nearest_exact2d.out _upsample_nearest_exact3d.out abs.out acos.out acosh.out add.Scalar_out add.out
addbmm.out addcdiv.out addcmul.out addmm.out addmv.out addr.out alias_copy.out all.all_out all.dims_out all.out
amax.out amin.out angle.out any.all_out any.dims_out any.out argmax.out argmin.out as_strided_copy.out
as_strided_scatter.out asin.out asinh.out atan.out atan2.out atanh.out avg_pool2d.out avg_pool3d.out baddbmm.out
bernoulli.out binary_cross_entropy_with_logits.out bincount.out bitwise_and.Tensor_out bitwise_left_shift.Tensor_out
bitwise_not.out bitwise_or.Tensor_out bitwise_right_shift.Tensor_out bitwise_xor.Tensor_out block_diag.out bmm.out
bucketize.Tensor_out cat.out ceil.out celu.out channel_shuffle.out clamp.Tensor_out clamp.out clamp_max.Tensor_out
clamp_min.Tensor_out clamp_min.out clone.out complex.out constant_pad_nd.out convolution.out copysign.Scalar_out
copysign.out cos.out cosh.out count_nonzero.dim_IntList_out count_nonzero.out cumprod.out cumsum.out deg2rad.out
diag_embed.out diagonal_copy.out diagonal_scatter.out digamma.out dist.out div.Scalar_out div.out div.out_mode dot.out
elu.out embedding.out eq.Scalar_out eq.Tensor_out erf.out erfc.out erfinv.out exp.out exp2.out expand_copy.out
expm1.out fill.Scalar_out flip.out floor.out floor_divide.out fmax.out fmin.out fmod.Tensor_out frac.out gather.out
gcd.out ge.Scalar_out ge.Tensor_out gelu.out glu.out grid_sampler_2d.out grid_sampler_3d.out gt.Scalar_out
gt.Tensor_out hardshrink.out hardsigmoid.out hardswish.out hardtanh.out hash_tensor.out heaviside.out histc.out
hypot.out i0.out igamma.out igammac.out index.Tensor_out index_add.out index_copy.out index_fill.int_Scalar_out
index_fill.int_Tensor_out index_put.out index_reduce.out index_select.out isin.Tensor_Tensor_out isinf.out isnan.out
isneginf.out isposinf.out lcm.out ldexp.out le.Scalar_out le.Tensor_out leaky_relu.out lerp.Scalar_out lerp.Tensor_out
lgamma.out linalg_cross.out linalg_lu_solve.out linalg_matrix_exp.out linalg_pinv.atol_rtol_tensor_out
linalg_solve_triangular.out linalg_vector_norm.out log.out log10.out log1p.out log2.out logaddexp.out logaddexp2.out
logcumsumexp.out logical_and.out logical_not.out logical_or.out logical_xor.out logit.out logsumexp.out lt.Scalar_out
lt.Tensor_out masked_fill.Scalar_out masked_fill.Tensor_out masked_scatter.out masked_select.out max.unary_out
max_pool2d_with_indices_backward.grad_input max_unpool2d.out max_unpool3d.out maximum.out mean.dtype_out mean.out
median.out min.unary_out minimum.out mish.out mm.out mse_loss.out mul.Scalar_out mul.out multi_margin_loss.out
multinomial.out mv.out mvlgamma.out nan_to_num.out nanmedian.out nansum.out narrow_copy.out
native_dropout_backward.out ne.Scalar_out ne.Tensor_out neg.out nextafter.out nonzero.out nonzero_static.out norm.out
normal.Tensor_Tensor_out normal.Tensor_float_out permute_copy.out pixel_shuffle.out pixel_unshuffle.out polar.out
polygamma.out pow.Tensor_Scalar_out pow.Tensor_Tensor_out prod.int_out prod.out put.out rad2deg.out reciprocal.out
reflection_pad1d.out reflection_pad2d.out reflection_pad3d.out relu.out remainder.Scalar_out remainder.Tensor_out
renorm.out repeat.out repeat_interleave.Tensor_out replication_pad1d.out replication_pad2d.out replication_pad3d.out
roll.out rot90.out round.decimals_out round.out rsqrt.out rsub.Scalar_out rsub.Tensor_out scatter.reduce_out
scatter.src_out scatter.value_out scatter.value_reduce_out scatter_add.out scatter_reduce.two_out
searchsorted.Tensor_out segment_reduce.out select_scatter.out sgn.out sigmoid.out sign.out signbit.out silu.out
sin.out sinc.out sinh.out slice_scatter.out smooth_l1_loss.out soft_margin_loss.out softplus.out softshrink.out
special_airy_ai.out special_bessel_j0.out special_bessel_j1.out special_bessel_y0.out special_bessel_y1.out
special_chebyshev_polynomial_t.out special_chebyshev_polynomial_u.out special_chebyshev_polynomial_v.out
special_chebyshev_polynomial_w.out special_entr.out special_erfcx.out special_hermite_polynomial_h.out
special_hermite_polynomial_he.out special_i0e.out special_i1.out special_i1e.out special_laguerre_polynomial_l.out
special_legendre_polynomial_p.out special_log_ndtr.out special_modified_bessel_i0.out special_modified_bessel_i1.out
special_modified_bessel_k0.out special_modified_bessel_k1.out special_ndtri.out special_scaled_modified_bessel_k0.out
special_scaled_modified_bessel_k1.out special_shifted_chebyshev_polynomial_t.out
special_shifted_chebyshev_polynomial_u.out special_shifted_chebyshev_polynomial_v.out
special_shifted_chebyshev_polynomial_w.out special_spherical_bessel_j0.out special_xlog1py.out special_zeta.out
sqrt.out squeeze_copy.dim_out squeeze_copy.out stack.out std.correction_out sub.Scalar_out sub.out sum.IntList_out
sum.out t_copy.out take.out tan.out tanh.out threshold.out trace.out transpose_copy.int_out tril.out triu.out
trunc.out unfold_backward.out unfold_copy.out unsqueeze_copy.out upsample_bicubic2d.out upsample_bilinear2d.out
upsample_linear1d.out upsample_nearest1d.out upsample_nearest2d.out upsample_nearest3d.out upsample_trilinear3d.out
var.correction_out vdot.out view_copy.out where.self_out xlogy.OutTensor
"""

PROVED = frozenset(f"aten::{name}" for name in _NAMES.split())
