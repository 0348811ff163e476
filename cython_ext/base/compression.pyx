"""Block compression, byte shuffle and checksums, all from Blosc2's static library.

The raw LZ4, Zstandard and XXH3 functions in it are called directly: no frame format of Blosc2's,
no global lock, no initialisation. LZ4 wants a table and Zstandard contexts; each
thread keeps its own until it ends.
"""

from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <pthread.h>
    /* glibc 2.34 gave these a second version. The first one is in every release, so that a wheel
       built here runs on older ones. */
    #if defined(__GLIBC__) && defined(__x86_64__)
    __asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
    __asm__(".symver pthread_key_create,pthread_key_create@GLIBC_2.2.5");
    __asm__(".symver pthread_setspecific,pthread_setspecific@GLIBC_2.2.5");
    #elif defined(__GLIBC__) && defined(__aarch64__)
    __asm__(".symver pthread_once,pthread_once@GLIBC_2.17");
    __asm__(".symver pthread_key_create,pthread_key_create@GLIBC_2.17");
    __asm__(".symver pthread_setspecific,pthread_setspecific@GLIBC_2.17");
    #endif
    #include <stddef.h>
    #include <stdint.h>
    #include <stdlib.h>
    unsigned long long XXH3_64bits(const void* data, size_t size);
    typedef struct XXH3_state_s XXH3_state_t;
    XXH3_state_t* XXH3_createState(void);
    int XXH3_freeState(XXH3_state_t*);
    int XXH3_64bits_reset(XXH3_state_t*);
    int XXH3_64bits_update(XXH3_state_t*, const void* data, size_t size);
    unsigned long long XXH3_64bits_digest(const XXH3_state_t*);
    int LZ4_sizeofState(void);
    void* LZ4_initStream(void* state, size_t size);
    int LZ4_compress_fast_extState_fastReset(
        void* state, const char* source, char* target, int size, int capacity, int acceleration);
    int LZ4_decompress_safe(const char* source, char* target, int size, int capacity);
    typedef struct ZSTD_CCtx_s ZSTD_CCtx;
    typedef struct ZSTD_DCtx_s ZSTD_DCtx;
    ZSTD_CCtx* ZSTD_createCCtx(void);
    ZSTD_DCtx* ZSTD_createDCtx(void);
    size_t ZSTD_compressCCtx(ZSTD_CCtx*, void*, size_t, const void*, size_t, int level);
    size_t ZSTD_decompressDCtx(ZSTD_DCtx*, void*, size_t, const void*, size_t);
    size_t ZSTD_freeCCtx(ZSTD_CCtx*);
    size_t ZSTD_freeDCtx(ZSTD_DCtx*);
    unsigned ZSTD_isError(size_t code);
    int blosc2_shuffle(int32_t width, int32_t size, const void* source, void* target);
    int blosc2_unshuffle(int32_t width, int32_t size, const void* source, void* target);

    typedef struct {
        void* lz4_state;
        ZSTD_CCtx* zstd_compressor;
        ZSTD_DCtx* zstd_decompressor;
        int freed_at_exit;
    } CodecContexts;
    static __thread CodecContexts contexts;
    static pthread_key_t contexts_key;
    static pthread_once_t contexts_once = PTHREAD_ONCE_INIT;

    static void free_contexts(void* place) {
        CodecContexts* held = place;
        free(held->lz4_state);
        ZSTD_freeCCtx(held->zstd_compressor);
        ZSTD_freeDCtx(held->zstd_decompressor);
    }
    static void make_contexts_key(void) { pthread_key_create(&contexts_key, free_contexts); }
    /* This thread's contexts; what is put into them is freed when the thread ends. */
    static CodecContexts* thread_contexts(void) {
        if (!contexts.freed_at_exit) {
            pthread_once(&contexts_once, make_contexts_key);
            contexts.freed_at_exit = pthread_setspecific(contexts_key, &contexts) == 0;
        }
        return &contexts;
    }

    /* The table is cleared once per thread and then kept usable by LZ4 itself: clearing 16 KiB for
       each block would cost a tenth of compressing it. */
    static int lz4_compress(
        const char* source, char* target, int size, int capacity, int acceleration) {
        CodecContexts* own = thread_contexts();
        if (!own->lz4_state) {
            void* state = malloc((size_t)LZ4_sizeofState());
            if (!state) return 0;
            own->lz4_state = LZ4_initStream(state, (size_t)LZ4_sizeofState());
            if (!own->lz4_state) { free(state); return 0; }
        }
        return LZ4_compress_fast_extState_fastReset(
            own->lz4_state, source, target, size, capacity, acceleration);
    }
    static size_t zstd_compress(void* target, size_t capacity, const void* source, size_t size) {
        CodecContexts* own = thread_contexts();
        if (!own->zstd_compressor && !(own->zstd_compressor = ZSTD_createCCtx())) return 0;
        size_t written =
            ZSTD_compressCCtx(own->zstd_compressor, target, capacity, source, size, 1);
        return ZSTD_isError(written) ? 0 : written;
    }
    static size_t zstd_decompress(void* target, size_t capacity, const void* source, size_t size) {
        CodecContexts* own = thread_contexts();
        if (!own->zstd_decompressor && !(own->zstd_decompressor = ZSTD_createDCtx()))
            return (size_t)-1;
        size_t written =
            ZSTD_decompressDCtx(own->zstd_decompressor, target, capacity, source, size);
        return ZSTD_isError(written) ? (size_t)-1 : written;
    }
    """
    uint64_t XXH3_64bits(const void* data, size_t size) noexcept nogil
    ctypedef struct XXH3_state_t:
        pass
    XXH3_state_t* XXH3_createState() noexcept nogil
    int XXH3_freeState(XXH3_state_t*) noexcept nogil
    int XXH3_64bits_reset(XXH3_state_t*) noexcept nogil
    int XXH3_64bits_update(XXH3_state_t*, const void* data, size_t size) noexcept nogil
    uint64_t XXH3_64bits_digest(const XXH3_state_t*) noexcept nogil
    int lz4_compress(const char*, char*, int, int, int) noexcept nogil
    int LZ4_decompress_safe(const char*, char*, int, int) noexcept nogil
    int blosc2_shuffle(int32_t, int32_t, const void*, void*) noexcept nogil
    int blosc2_unshuffle(int32_t, int32_t, const void*, void*) noexcept nogil
    size_t zstd_compress(void*, size_t, const void*, size_t) noexcept nogil
    size_t zstd_decompress(void*, size_t, const void*, size_t) noexcept nogil

cdef size_t LARGEST_BLOCK = 0x7E000000  # LZ4 counts in int


cdef uint64_t xxh3(const void* data, size_t size) noexcept nogil:
    return XXH3_64bits(data, size)


cdef size_t compress_bound(size_t size) noexcept nogil:
    return size + size // 128 + 512


cdef size_t compress(
    int codec, int acceleration, const uint8_t* source, size_t size, uint8_t* target,
    size_t capacity,
) noexcept nogil:
    cdef size_t written = 0
    cdef int found
    if size > LARGEST_BLOCK or size < 32:
        return 0
    if codec == CODEC_LZ4:
        found = lz4_compress(
            <const char*> source, <char*> target, <int> size, <int> min(capacity, LARGEST_BLOCK),
            acceleration,
        )
        written = found if found > 0 else 0
    elif codec == CODEC_ZSTD:
        written = zstd_compress(target, capacity, source, size)
    return written if written < size else 0


cdef int decompress(
    int codec, const uint8_t* source, size_t size, uint8_t* target, size_t raw_size
) noexcept nogil:
    cdef size_t written
    if codec == CODEC_NONE:
        if size != raw_size:
            return -1
        memcpy(target, source, size)
        return 0
    if size > LARGEST_BLOCK or raw_size > LARGEST_BLOCK:
        return -1
    if codec == CODEC_LZ4:
        return 0 if LZ4_decompress_safe(
            <const char*> source, <char*> target, <int> size, <int> raw_size
        ) == <int> raw_size else -1
    if codec == CODEC_ZSTD:
        written = zstd_decompress(target, raw_size, source, size)
        return 0 if written == raw_size else -1
    return -1


cdef int shuffle(size_t width, const uint8_t* source, size_t size, uint8_t* target) noexcept nogil:
    return 0 if blosc2_shuffle(<int32_t> width, <int32_t> size, source, target) >= 0 else -1


cdef int unshuffle(
    size_t width, const uint8_t* source, size_t size, uint8_t* target
) noexcept nogil:
    return 0 if blosc2_unshuffle(<int32_t> width, <int32_t> size, source, target) >= 0 else -1


def checksum(const uint8_t[::1] data not None) -> int:
    """Return the XXH3 of the bytes, 64 bits."""
    return XXH3_64bits(&data[0] if data.shape[0] else NULL, data.shape[0])


def checksum_of(pieces) -> int:
    """Return the checksum of several pieces, one after another."""
    cdef const uint8_t[::1] piece
    cdef XXH3_state_t* state = XXH3_createState()
    if state == NULL:
        raise MemoryError("no memory for a checksum")
    try:
        XXH3_64bits_reset(state)
        for piece in pieces:
            if piece.shape[0]:
                XXH3_64bits_update(state, &piece[0], piece.shape[0])
        return XXH3_64bits_digest(state)
    finally:
        XXH3_freeState(state)


_CODECS = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}


def codec_number(str name not None) -> int:
    """Return the number of a codec on disk; numbers never change."""
    return _CODECS[name]


def packed(bytes data not None, str codec not None) -> bytes | None:
    """Compress one piece, for tests and small sections; None if it does not shrink."""
    cdef bytearray target = bytearray(compress_bound(len(data)))
    cdef int number = _CODECS[codec]
    cdef size_t written = compress(
        number, 1, <const uint8_t*> data, len(data), <uint8_t*> target, len(target)
    )
    return bytes(target[:written]) if written else None


def unpacked(bytes data not None, str codec not None, size_t raw_size) -> bytes | None:
    """Invert ``packed``; None if the data is damaged."""
    cdef bytearray target = bytearray(raw_size)
    cdef int number = _CODECS[codec]
    if decompress(number, <const uint8_t*> data, len(data), <uint8_t*> target, raw_size):
        return None
    return bytes(target)
