/* JSON text of rankings and judgments -> columns, for messages of the ordinary kind; and columns
   -> JSON text (rows.h).

   The decoder is sound, not complete: it takes what it fully understands and nothing that the
   models of wire/messages/models.py refuse, and stops before the first other message, which is
   then read by the book. It is plain C without Python: wire/native/__init__.py hands over text and arrays.

   Why no access is out of bounds:
   - Each text ends in a NUL byte that is not part of it. No JSON has one, so every loop over a
     text ends there at the latest, and every function that meets it refuses the message.
   - Whatever is written was read from at least as many bytes as `room` in the Python part
     counts for it.
   - Rows take from each source as many items as it has: `rows_of` counts them before.

   UTF-8 is checked by the caller: here a byte from 0x80 on is a byte of some character.
   A function that reads returns where it came to, or NULL for a message to leave alone. */

#include "basics.h"
#include "numbers.h"
#include "json.h"
#include "names.h"
#include "rankings.h"
#include "judgments.h"
