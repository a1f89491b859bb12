"""What to do about an operator that TensorRT has not, or a message that says little.

Messages are those of TensorRT-RTX 1.7's ONNX parser and builder; the operators are those that its ``supports_operator`` says no to.
"""

from __future__ import annotations

import re

_SERVE_BY_ONNX_RUNTIME = "or serve the file as it is, as model.onnx: ONNX Runtime has it"
_QUANTISE_STATICALLY = "quantise the FP32 file with Q/DQ nodes instead: `tensorgate build --precision int8 --data FILE.npz`"

_BY_OPERATOR: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^TreeEnsemble"), f"write the trees as tensor operators (docs/tensorrt.md), {_SERVE_BY_ONNX_RUNTIME}"),
    (re.compile(r"^Scaler$"), "write it as Sub and Mul: (x - offset) * scale"),
    (re.compile(r"^Linear(Classifier|Regressor)$"), "write it as Gemm, and Softmax or Sigmoid behind it"),
    (re.compile(r"^ArrayFeatureExtractor$"), "write it as Gather, or leave the label out and take the index of the largest score outside"),
    (
        re.compile(r"^(Normalizer|Binarizer|Imputer|OneHotEncoder|LabelEncoder|ZipMap|SVM\w+)$"),
        "do it outside of the model, in a step before or behind it",
    ),
    (re.compile(r"^(DynamicQuantizeLinear|MatMulInteger|ConvInteger|QLinear\w+)$"), _QUANTISE_STATICALLY),
    (
        re.compile(
            r"^(SkipLayerNormalization|SkipSimplifiedLayerNormalization|EmbedLayerNormalization|FusedConv|FusedMatMul|FusedGemm|FastGelu|BiasGelu)$"
        ),
        "this is ONNX Runtime's own fusion: take the file as it was before ONNX Runtime optimised it",
    ),
    (
        re.compile(r"^String|Tokenizer|^RegexFullReplace$|^TfIdfVectorizer$"),
        "TensorRT has no strings: do it in a step before the model (docs/pipelines.md)",
    ),
    (re.compile(r"^(Unique|DeformConv|DFT|Det|Optional\w*|Sequence\w+)$"), f"replace it, {_SERVE_BY_ONNX_RUNTIME}"),
)

_BY_MESSAGE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"type Int32 but must have type"),
        "a bias is quantised to INT32: quantise without biases (ONNX Runtime: extra_options={'QuantizeBias': False})",
    ),
    (
        re.compile(r"[Nn]on-zero zero point|shiftIsAllZeros"),
        "TensorRT quantises symmetrically: take signed INT8 and zero points of 0 (ONNX Runtime: ActivationSymmetric, QuantType.QInt8)",
    ),
    (re.compile(r"unsupported input type of UINT8"), "UINT8 may only be cast: put a Cast to FLOAT before this node"),
    (re.compile(r"convertDtype"), "a tensor's type is one that TensorRT has not (strings, complex numbers)"),
    (
        re.compile(r"Quantized constant|only allowed before DQ"),
        "quantise Conv, MatMul and Gemm only (ONNX Runtime: op_types_to_quantize)",
    ),
    (
        re.compile(r"graphScope|kUNDEFINED"),
        "an If inside an If cannot be built: export the model for one case, without the branch",
    ),
    (
        re.compile(r"different constant values or have contradictory"),
        "TensorRT takes dimensions of equal names for equal sizes: give them the same sizes, or --independent-dims NAME",
    ),
    (
        re.compile(r"missing values for shape input tensor"),
        "this input's values are a shape, which no flag gives: make it a constant, or compute it from another input's shape",
    ),
    (re.compile(r"FP32 GEMM is not supported"), "GPUs before 8.0 cannot run this in FP32: leave the target out, or build FP16"),
    (
        re.compile(r"HW-specific datatypes"),
        "FP8 needs compute capability 8.9 or newer: leave the older targets out",
    ),
    (
        re.compile(r"kOPT values for profile|kMIN values for profile|kMAX values for profile"),
        "the model cannot be computed with these shapes: write others with --shapes",
    ),
    (
        re.compile(r"not self-consistent"),
        "sizes of the largest (or least) shapes do not fit each other: a profile for each use has fitting ones, one --shapes each",
    ),
    (re.compile(r"[Oo]ut of memory|insufficient memory|OutOfMemory"), "less memory: smaller largest shapes, or a smaller --workspace"),
    (re.compile(r"insufficient workspace|workspace"), "a larger --workspace"),
    (
        re.compile(r"[Pp]lugin not found|creator &&"),
        f"name the library that has it with --plugin, replace the operator, {_SERVE_BY_ONNX_RUNTIME}",
    ),
)

_STRAY = re.compile(r"cudaError ?35|CUDA driver version is insufficient|Make sure input .* has Int64 binding")
"""What the compiler says of itself where there is no GPU, and what the metadata say anyway; neither concerns the model."""


def is_stray(message: str) -> bool:
    """Whether a message is none that a user should read."""
    return _STRAY.search(message) is not None


def remedy_for(operator: str, message: str) -> str:
    """What to do, as the end of a sentence; "" where we do not know.

    Args:
        operator: the node's operator; "" where no node is to blame.
        message: TensorRT's own text.
    """
    for pattern, remedy in _BY_OPERATOR:
        if operator and pattern.search(operator):
            return remedy
    for pattern, remedy in _BY_MESSAGE:
        if pattern.search(message):
            return remedy
    return ""
