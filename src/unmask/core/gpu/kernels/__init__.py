"""Hidden rows × head -> the numbers of `read`, as Triton kernels that keep every tile of logits in registers.

`sweep` takes blocks of rows over tiles of the vocabulary and leaves partial results, `merge` joins them, `pick` draws a
token. Rows are named by `index` (positions asked, in order) and `count`, both on the device. Arguments that change from
call to call are not specialised: a compilation takes seconds.
"""
