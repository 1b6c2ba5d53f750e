"""What did a build write: generations, the files of their steps, and how two results differ?

Imports definition and sinks; no Spark, so that promoting, applying and waiting start no JVM.
"""
