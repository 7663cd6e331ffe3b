"""Everything private of torch or CPython that the shim touches: one small adapter a subject, each with the versions that it
was seen on."""
