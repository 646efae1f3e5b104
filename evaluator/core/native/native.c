/* What the core does most often: scores and grades brought together, spans of open queries aligned, further
   judgments merged, keys looked up. All of it is the same as in core/measures/dense.py, core/measures/align.py,
   core/join/judgments.py and core/store/key_index.py, to the bit.

   It is plain C without Python: library.py hands over arrays. Numbers are compared and moved, never
   computed with, so no flag of a compiler can change a result.

   Why no access is out of bounds:
   - No list is wider than MOST_COLUMNS, nor is any empty, which lists.py sees to, and a block has
     room for lists of that width and one column more. Ranks within a list are all different, from
     0 to before its width; positions that are given are checked.
   - Spans are those of pools, which open_queries.py and judged.py keep. A merged span is no longer than what
     stood and what came, for which there is room.
   - A part of the index always has a free place, or no places at all and no entries. */

#include "basics.h"
#include "order.h"
#include "dense.h"
#include "align.h"
#include "merge.h"
#include "index.h"
