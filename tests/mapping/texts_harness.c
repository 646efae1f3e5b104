/* Reads records in Avro or Protobuf from standard input, each alone in an array of its size, so that no
   read beyond it is missed. Input: the table of powers, then per batch as int64 whether it is Protobuf,
   the sizes of the tables and the root, the tables, the room of the output, the number of records, and
   each with its length. */

#include "../wire/harness.h"

int main(void)
{
    int64_t n_read = 0, is_protobuf;
    read_powers();
    while ((is_protobuf = number()) >= 0) {
        struct texts texts = given_schema(is_protobuf);
        int64_t room = number();
        for (int64_t n = number(); n; n--) {
            int64_t size = number();
            byte *data = given(size, 1);
            n_read += text_in(data, size, n % 7 ? room : 100000, texts);
            free(data);
        }
        free((void *)texts.types), free((void *)texts.parts), free((void *)texts.names);
        free(texts.slots);
    }
    printf("%lld\n", (long long)n_read);
    return 0;
}
