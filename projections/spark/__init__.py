"""How is Spark started, is all of one version, and what do its errors mean?"""
