from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    CODEC_NONE = 0
    CODEC_LZ4 = 1
    CODEC_ZSTD = 2
    CODEC_PLANES = 3  # of row blocks only: block.pyx, bit_planes.pyx

cdef uint64_t xxh3(const void* data, size_t size) noexcept nogil
cdef size_t compress_bound(size_t size) noexcept nogil
# Compressed size, or 0 if the result is not smaller than the source (store it plain).
# `acceleration` is LZ4's: from 1 on, faster and a little larger.
cdef size_t compress(
    int codec, int acceleration, const uint8_t* source, size_t size, uint8_t* target,
    size_t capacity,
) noexcept nogil
# 0 if exactly raw_size bytes came out, -1 if the source is damaged or the codec unknown.
cdef int decompress(
    int codec, const uint8_t* source, size_t size, uint8_t* target, size_t raw_size
) noexcept nogil
cdef int shuffle(size_t width, const uint8_t* source, size_t size, uint8_t* target) noexcept nogil
cdef int unshuffle(size_t width, const uint8_t* source, size_t size, uint8_t* target) noexcept nogil
