"""What may be done with the text that a value of Postgres is kept as: Spark's expressions by their classes. Pure."""

from __future__ import annotations

import re

from tailrace.projections.analysis.plan_tree import Node

CARRYING = frozenset({
    "Alias", "And", "ArrayExists", "ArrayForAll", "ArraySize", "ArrayTransform", "AtLeastNNonNulls", "Cardinality",
    "CaseWhen", "CollectTopK", "CommonExpressionDef", "CommonExpressionRef", "Count", "CountIf",
    "CreateNamedStruct", "GetStructField", "If", "IsNotNull", "IsNull", "LambdaFunction", "ListQuery", "MaxBy",
    "MinBy", "NamedLambdaVariable", "Not", "Or", "OuterReference", "Size", "Stack", "UnresolvedAlias",
    "UpdateFields", "WindowSpecDefinition", "With",
})  # fmt: skip
"""What looks at no value: it carries them along, counts them or tells NULL."""

TEXT_FUNCTIONS = frozenset({
    "ArrayJoin", "Ascii", "Base64", "BitLength", "Concat", "ConcatWs", "Contains", "Crc32", "Elt", "Encode", "EndsWith",
    "FindInSet", "FormatString", "GetJsonObject", "ILike", "InitCap", "Invoke", "JsonObjectKeys", "JsonToStructs",
    "JsonTuple", "Left", "Length", "LengthOfJsonArray", "Levenshtein", "Like", "LikeAll", "LikeAny", "ListAgg",
    "Lower", "Mask", "Md5", "Murmur3Hash", "NotLikeAll", "NotLikeAny", "OctetLength", "Overlay", "ParseJson",
    "PythonUDAF", "PythonUDF", "PythonUDTF", "RLike", "RegExpCount", "RegExpExtract", "RegExpExtractAll",
    "RegExpInStr", "RegExpReplace", "RegExpSubStr", "Right", "ScalaUDF", "SchemaOfJson", "Sha1", "Sha2", "Soundex",
    "SplitPart", "StartsWith", "StaticInvoke", "StringInstr", "StringLPad", "StringLocate", "StringRPad",
    "StringRepeat", "StringReplace", "StringSplit", "StringTranslate", "StringTrim", "StringTrimBoth",
    "StringTrimLeft", "StringTrimRight", "StructsToJson", "Substring", "SubstringIndex", "ToBinary", "ToCharacter",
    "TryParseJson", "UnBase64", "Upper", "VariantGet", "XxHash64",
})  # fmt: skip
"""What sees a text as text, and makes another value of it."""

_PATTERNS = frozenset({"Like", "ILike", "RLike", "LikeAll", "LikeAny", "NotLikeAll", "NotLikeAny"})
_SIZES = frozenset({"OctetLength", "BitLength", "ConcatWs"})
_SAME_WITH_BLANKS = {
    "Like": re.compile(r"[^_\\]*[^_\\ ]%|%", re.S),
    "ILike": re.compile(r"[^_\\]*[^_\\ ]%|%", re.S),
    "RLike": re.compile(r"\^?[\w-]+"),
}
"""Patterns that blanks at the end of a text do not matter to."""


def pads_matter(inner: Node) -> bool:
    """Whether Postgres would look at the blanks at the end of ``char(n)``, as LIKE, octet_length and concat do."""
    if inner.kind in _SIZES:
        return True
    if inner.kind not in _PATTERNS:
        return False
    pattern = inner.children[1] if len(inner.children) > 1 else None
    known = _SAME_WITH_BLANKS.get(inner.kind)
    if pattern is None or pattern.kind != "Literal" or known is None:
        return True
    text = str(pattern.fields.get("value") or "")
    return known.fullmatch(text) is None or " %" in text
