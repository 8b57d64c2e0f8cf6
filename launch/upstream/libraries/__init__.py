"""The configuration keys that DeepSpeed and accelerate read.

DeepSpeed silently ignores a misspelt top-level key, and accelerate one under `deepspeed_config:`,
so a check of such a file needs the list of keys that the library reads. It is locked
(`data/libraries/*.json`) with the library's version; `python -m maintain relock` rewrites it.

    library_keys("deepspeed", site_packages)    # LibraryKeys: version, installed version and a KeySpec
"""
