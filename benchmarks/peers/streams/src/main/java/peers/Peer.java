package peers;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * The evaluator as a Kafka Streams job: Processor API, RocksDB stores with changelogs, at least once.
 *
 * <p>Arguments: bootstrap servers, topic prefix, group, records of both inputs, report, state directory,
 * compression of what is produced.
 */
public final class Peer {
  private static final long LIMIT_SECONDS = 600;

  private Peer() {}

  public static void main(String[] args) throws Exception {
    String prefix = args[1];
    Totals totals = new Totals(Long.parseLong(args[3]));
    KafkaStreams streams = new KafkaStreams(topology(prefix, totals), settings(args));
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
    streams.setStateListener(
        (now, before) -> {
          if (now == KafkaStreams.State.ERROR) {
            System.exit(1);
          }
        });
    streams.start();
    boolean finished = totals.done.await(LIMIT_SECONDS, TimeUnit.SECONDS);
    streams.close(Duration.ofSeconds(60));
    if (!finished) {
      System.err.println("not all records were read in time");
      System.exit(1);
    }
    totals.write(Path.of(args[4]));
  }

  private static Topology topology(String prefix, Totals totals) {
    Topology topology = new Topology();
    for (String input : new String[] {"rankings", "judgments"}) {
      topology.addSource(
          input, new ByteArrayDeserializer(), new ByteArrayDeserializer(), prefix + input);
      boolean ofRankings = input.equals("rankings");
      topology.addProcessor("join-" + input, () -> new Join(ofRankings, totals), input);
    }
    for (String name : new String[] {Join.RANKINGS, Join.EARLY}) {
      StoreBuilder<KeyValueStore<String, byte[]>> store =
          Stores.keyValueStoreBuilder(
                  Stores.persistentKeyValueStore(name), Serdes.String(), Serdes.ByteArray())
              .withLoggingEnabled(Map.of())
              .withCachingDisabled(); // no key is written twice, so a cache only costs
      topology.addStateStore(store, "join-rankings", "join-judgments");
    }
    topology.addSink(
        "results",
        prefix + "naive",
        new ByteArraySerializer(),
        new ByteArraySerializer(),
        "join-rankings",
        "join-judgments");
    return topology;
  }

  private static Properties settings(String[] args) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[2]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, args[5]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1); // on one core
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.AT_LEAST_ONCE);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    settings.put(StreamsConfig.consumerPrefix("max.poll.records"), 5000);
    settings.put(StreamsConfig.consumerPrefix("max.partition.fetch.bytes"), 8 << 20);
    settings.put(StreamsConfig.producerPrefix("compression.type"), args[6]);
    settings.put(StreamsConfig.producerPrefix("batch.size"), 512 << 10);
    settings.put("log.level", "WARN");
    return settings;
  }
}
