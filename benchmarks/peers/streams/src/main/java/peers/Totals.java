package peers;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** Exact sums by series, and the CPU and wall time from the first record on. One thread writes. */
final class Totals {
  private static final double UNIT = 1L << 40;
  private static final OperatingSystemMXBean SYSTEM =
      (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

  /** Wall nanoseconds and CPU nanoseconds of the whole process. */
  private record Moment(long wall, long cpu) {
    static Moment now() {
      return new Moment(System.nanoTime(), SYSTEM.getProcessCpuTime());
    }
  }

  private record Series(String model, String variant, String ranker) {}

  private static final class Sums {
    long queries;
    final BigInteger[] units = new BigInteger[Measures.NAMES.length];
    final long[] recent = new long[Measures.NAMES.length];
  }

  final CountDownLatch done = new CountDownLatch(1);
  private final long nRecords;
  private final Map<Series, Sums> sums = new HashMap<>();
  private Moment began, halfway, ended;
  private long nRead;

  Totals(long nRecords) {
    this.nRecords = nRecords;
  }

  void begin() {
    if (began == null) {
      began = Moment.now();
    }
  }

  void read() {
    nRead++;
    if (nRead == nRecords / 2) {
      halfway = Moment.now();
    } else if (nRead == nRecords) {
      ended = Moment.now();
      done.countDown();
    }
  }

  void add(String model, String variant, String ranker, double[] values) {
    Sums of = sums.computeIfAbsent(new Series(model, variant, ranker), series -> new Sums());
    of.queries++;
    for (int i = 0; i < values.length; i++) {
      of.recent[i] += (long) Math.rint(values[i] * UNIT);
      if (of.recent[i] > Long.MAX_VALUE / 4) {
        of.units[i] = whole(of, i);
        of.recent[i] = 0;
      }
    }
  }

  private static BigInteger whole(Sums of, int i) {
    BigInteger recent = BigInteger.valueOf(of.recent[i]);
    return of.units[i] == null ? recent : of.units[i].add(recent);
  }

  /** Writes the report, after everything is acknowledged and committed. */
  void write(Path report) throws IOException {
    Moment closed = Moment.now();
    try (JsonGenerator out =
        new JsonFactory()
            .createGenerator(new File(report.toString()), com.fasterxml.jackson.core.JsonEncoding.UTF8)) {
      out.writeStartObject();
      out.writeNumberField("wall_seconds", (closed.wall - began.wall) / 1e9);
      out.writeNumberField("cpu_seconds", (closed.cpu - began.cpu) / 1e9);
      out.writeNumberField("second_half_cpu_seconds", (ended.cpu - halfway.cpu) / 1e9);
      out.writeNumberField("second_half_records", nRecords - nRecords / 2);
      out.writeNumberField("max_rss_mb", peakMb());
      out.writeObjectFieldStart("stages");
      out.writeEndObject();
      out.writeArrayFieldStart("totals");
      for (Map.Entry<Series, Sums> each : sums.entrySet()) {
        for (int i = 0; i < Measures.NAMES.length; i++) {
          out.writeStartArray();
          Series series = each.getKey();
          for (String text :
              List.of(series.model, series.variant, series.ranker, Measures.NAMES[i])) {
            out.writeString(text);
          }
          out.writeNumber(each.getValue().queries);
          out.writeNumber(whole(each.getValue(), i));
          out.writeEndArray();
        }
      }
      out.writeEndArray();
      out.writeEndObject();
    }
  }

  private static double peakMb() throws IOException {
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("VmHWM:")) {
        return Long.parseLong(line.replaceAll("\\D", "")) / 1024.0;
      }
    }
    return Double.NaN;
  }
}
