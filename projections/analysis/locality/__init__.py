"""Is a projection local in its key? Proved on its plan, as Spark analyses it or as its optimizer rewrites it.

Top first: walk, joins, set_operations, computed_attributes, obstacle_words. ``rewritten`` is what else may be walked.
"""
