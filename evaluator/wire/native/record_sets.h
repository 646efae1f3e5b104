/* Reads record batches of Kafka to columns. Needs basics.h and json.h.

   Sound, not complete, like the decoder of messages: it stops before the first batch that is not
   plain or that is damaged in any way, which the reference path then reads. Every read is checked
   against the end of its batch. Each record takes at least MIN_RECORD_BYTES of framing besides its
   key and value, so that the arrays need `size / MIN_RECORD_BYTES` rows, and the texts `size` bytes.
   Source: https://kafka.apache.org/documentation/#recordbatch */

enum {
    BATCH_OVERHEAD = 12, /* offset and length */
    BATCH_HEADER = 61,
    MIN_RECORD_BYTES = 7,
    MAX_RECORD_BYTES = 1048576, /* of a mapped value; MAX_MESSAGE_BYTES of others: more is cut */
    MAX_HEADERS_BYTES = 16384,
    KEPT_RECORD_BYTES = 65536,
    CODEC = 7, /* bits of the attributes */
    APPEND_TIME = 8,
    TRANSACTIONAL = 16,
    CONTROL = 32,
};

/* IS_CUT: the only batch was unpacked up to a limit. Its first records are read, and of the record
   at the limit what is kept of it, if its value is larger than a message; then it stops AT_CUT,
   unless that was the last one. IS_FOREIGN: headers are kept, as they are in the batch; a batch with
   longer ones than MAX_HEADERS_BYTES is left. IS_WHOLE: values are not truncated. */
enum record_sets_flags {
    CHECK_CRC = 1,
    LEAVE_TRANSACTIONS = 2,
    IS_CUT = 4,
    IS_FOREIGN = 8,
    IS_WHOLE = 16,
};
enum record_sets_stop { AT_END, AT_COMPRESSED, AT_ODD, AT_CUT };

/* A size is that in the batch, -1 for none; what is kept of it is followed by a NUL byte. */
struct record_sets {
    int64_t n_rows, keys_size, values_size, headers_size;
    int64_t at;          /* position of the next batch */
    int64_t next_offset; /* the next one to read; earlier records are left out */
    int64_t stop;
    int64_t *offsets, *timestamps_ms;                            /* [n_rows] */
    int64_t *key_starts, *key_sizes, *value_starts, *value_sizes; /* [n_rows] */
    int64_t *header_starts, *header_sizes;
    byte *keys, *values, *headers;
};

static uint64_t big_endian(const byte *at, int n)
{
    uint64_t value = 0;
    while (n--)
        value = value << 8 | *at++;
    return value;
}

/* --- CRC-32C --- */

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_words(const byte *at, const byte *end)
{
    uint64_t crc = UINT32_MAX, word;
    for (; end - at >= 8; at += 8) {
        memcpy(&word, at, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    uint32_t rest = (uint32_t)crc;
    for (; at < end; at++)
        rest = rest >> 8 ^ crc_of_byte(CRC_32C, (rest ^ *at) & 0xff);
    return ~rest;
}
#endif

static uint32_t crc32c(const byte *at, const byte *end)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return crc_by_words(at, end);
#endif
    uint32_t table[256];
    fill_crc_table(table, CRC_32C);
    return crc_by_table(table, at, end);
}

/* --- records --- */

/* Reads a varint; NULL if it does not end, or has more than 64 bits. */
static const byte *read_bits(const byte *at, const byte *end, uint64_t *bits)
{
    *bits = 0;
    for (int shift = 0; at < end && shift < 70; shift += 7) {
        byte part = *at++;
        if (shift == 63 && part > 1)
            return NULL;
        *bits |= (uint64_t)(part & 0x7f) << shift;
        if (part < 0x80)
            return at;
    }
    return NULL;
}

static int64_t zigzag(uint64_t bits)
{
    return (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
}

static const byte *read_varint(const byte *at, const byte *end, int64_t *value)
{
    uint64_t bits;
    at = read_bits(at, end, &bits);
    *value = zigzag(bits);
    return at;
}

/* Reads a length of at least `least`, and skips as many bytes; `*found` is where they are. */
static const byte *read_bytes(const byte *at, const byte *end, int64_t least, const byte **found,
                              int64_t *size)
{
    if (!(at = read_varint(at, end, size)) || *size < least || *size > end - at)
        return NULL;
    *found = at;
    return *size < 0 ? at : at + *size;
}

static const byte *skip_headers(const byte *at, const byte *end)
{
    int64_t n, size;
    const byte *text;
    if (!(at = read_varint(at, end, &n)) || n < 0)
        return NULL;
    while (n--) {
        if (!(at = read_bytes(at, end, 0, &text, &size)))
            return NULL;
        while (size--)
            if (*text++ >= 0x80)
                return NULL; /* the reference path checks UTF-8 */
        if (!(at = read_bytes(at, end, -1, &text, &size)))
            return NULL;
    }
    return at;
}

static void keep_bytes(const byte *from, int64_t size, int64_t most, byte *texts,
                      int64_t *texts_size, int64_t *start)
{
    int64_t n = size > most ? KEPT_RECORD_BYTES : size < 0 ? 0 : size;
    *start = *texts_size;
    memcpy(texts + *start, from, n);
    texts[*start + n] = 0;
    *texts_size += n + 1;
}

struct batch {
    int64_t first_offset, last_delta, first_ms, append_ms, n_records, most;
    bool has_append_ms, is_cut, is_foreign;
};

/* Reads the value of a record whose end is missing. */
static const byte *read_cut_value(const byte *at, const byte *end, int64_t most, const byte **value,
                                  int64_t *size)
{
    if (!(*value = at = read_varint(at, end, size)) || *size <= most ||
        end - at < KEPT_RECORD_BYTES)
        return NULL;
    return end;
}

/* Reads one record; those before `next_offset` are left out. */
static const byte *read_record(const struct batch *batch, const byte *at, const byte *end,
                               struct record_sets *out)
{
    int64_t length, ms, delta, key_size, value_size, row = out->n_rows;
    const byte *key, *value;
    if (!(at = read_varint(at, end, &length)) || length < 1 || at == end || *at != 0)
        return NULL;
    bool is_cut = batch->is_cut && length > end - at;
    if (!is_cut && length > end - at)
        return NULL;
    if (!is_cut)
        end = at + length;
    if (!(at = read_varint(at + 1, end, &ms)) || !(at = read_varint(at, end, &delta)) ||
        delta < 0 || delta > batch->last_delta ||
        !(at = read_bytes(at, end, -1, &key, &key_size)) ||
        !(at = is_cut ? read_cut_value(at, end, batch->most, &value, &value_size)
                      : read_bytes(at, end, -1, &value, &value_size)) ||
        (!is_cut && skip_headers(at, end) != end) ||
        (batch->is_foreign && end - at > MAX_HEADERS_BYTES) ||
        __builtin_add_overflow(batch->first_ms, ms, &ms))
        return NULL;
    int64_t offset = batch->first_offset + delta;
    if (offset < out->next_offset)
        return end;
    out->offsets[row] = offset;
    out->timestamps_ms[row] = batch->has_append_ms ? batch->append_ms : ms;
    out->key_sizes[row] = key_size;
    out->value_sizes[row] = value_size;
    keep_bytes(key, key_size, MAX_MESSAGE_BYTES, out->keys, &out->keys_size, out->key_starts + row);
    keep_bytes(value, value_size, batch->most, out->values, &out->values_size,
               out->value_starts + row);
    if (batch->is_foreign) {
        out->header_sizes[row] = end - at;
        keep_bytes(at, end - at, MAX_HEADERS_BYTES, out->headers, &out->headers_size,
                   out->header_starts + row);
    }
    out->n_rows++;
    out->next_offset = offset + 1;
    return end;
}

/* Reads a batch of `size` bytes. Returns where to stop, or -1 to go on after it. */
static int read_batch(const byte *at, int64_t size, int64_t flags, struct record_sets *out)
{
    int64_t attributes = big_endian(at + 21, 2);
    struct batch batch = {
        .first_offset = big_endian(at, 8),
        .last_delta = big_endian(at + 23, 4),
        .first_ms = big_endian(at + 27, 8),
        .append_ms = big_endian(at + 35, 8),
        .n_records = big_endian(at + 57, 4),
        .has_append_ms = attributes & APPEND_TIME,
        .is_cut = flags & IS_CUT,
        .is_foreign = flags & IS_FOREIGN,
        .most = flags & IS_WHOLE     ? INT64_MAX
                : flags & IS_FOREIGN ? MAX_RECORD_BYTES
                                     : MAX_MESSAGE_BYTES,
    };
    if (at[16] != 2 || batch.first_offset < 0 || batch.first_offset > INT64_MAX / 2 ||
        batch.last_delta > INT32_MAX ||
        batch.first_offset + batch.last_delta + 1 < out->next_offset ||
        (flags & CHECK_CRC && crc32c(at + 21, at + size) != big_endian(at + 17, 4)) ||
        attributes & CONTROL || (flags & LEAVE_TRANSACTIONS && attributes & TRANSACTIONAL))
        return AT_ODD;
    if (attributes & CODEC)
        return AT_COMPRESSED;
    const byte *end = at + size;
    for (at += BATCH_HEADER; at && batch.n_records; batch.n_records--)
        at = read_record(&batch, at, end, out);
    if (batch.is_cut && (batch.n_records || !at))
        return AT_CUT;
    if (at != end)
        return AT_ODD;
    out->next_offset = batch.first_offset + batch.last_delta + 1;
    return -1;
}

/* Reads record batches up to the end, an incomplete batch, or one that it leaves. */
EXPORT void read_record_sets(const byte *data, int64_t size, int64_t flags,
                             struct record_sets *out)
{
    out->stop = AT_END;
    while (size - out->at >= BATCH_OVERHEAD) {
        const byte *at = data + out->at;
        int64_t n = BATCH_OVERHEAD + (int64_t)big_endian(at + 8, 4);
        struct record_sets before = *out;
        if (n <= INT32_MAX && n > size - out->at)
            return; /* cut off by the limit of the fetch */
        int stop = n < BATCH_HEADER || n > INT32_MAX ? AT_ODD : read_batch(at, n, flags, out);
        if (stop >= 0) {
            if (stop != AT_CUT)
                *out = before;
            out->stop = stop;
            return;
        }
        out->at += n;
    }
}
