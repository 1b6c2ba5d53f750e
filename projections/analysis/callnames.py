"""By which names a source calls what a plan's nodes do: how the line that made a node is found."""

CALLED = {
    "CurrentDate": ("current_date", "curdate"), "CurrentTimestamp": ("current_timestamp", "now", "unix_timestamp"),
    "Now": ("now",), "LocalTimestamp": ("localtimestamp",), "CurrentTime": ("current_time",),
    "CurrentCatalog": ("current_catalog",), "CurrentDatabase": ("current_database", "current_schema"),
    "CurrentUser": ("current_user", "session_user", "user"),
    "Rand": ("rand", "random"), "Randn": ("randn",), "Uuid": ("uuid",), "Shuffle": ("shuffle",),
    "MonotonicallyIncreasingID": ("monotonically_increasing_id",), "SparkPartitionID": ("spark_partition_id",),
    "InputFileName": ("input_file_name",), "First": ("first", "first_value"), "Last": ("last", "last_value"),
    "AnyValue": ("any_value",), "CollectList": ("collect_list", "array_agg"), "CollectSet": ("collect_set",),
    "ListAgg": ("listagg", "string_agg"), "StddevSamp": ("stddev", "std", "stddev_samp"),
    "VarianceSamp": ("variance", "var_samp"), "Average": ("avg", "mean"),
}  # fmt: skip
"""Of functions, the usual name first."""
GROUPING_CALLS = {
    "groupBy": ("groupBy", "groupby", "rollup", "cube", "pivot"), "partitionBy": ("partitionBy",),
    "distinct": ("distinct", "dropDuplicates", "drop_duplicates"), "except": ("subtract", "exceptAll"),
    "dropDuplicates": ("dropDuplicates", "drop_duplicates"), "intersect": ("intersect", "intersectAll"),
}  # fmt: skip
"""Of operators that tell rows apart."""
