import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.JsonByteArray;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Debezium as Kafka Connect runs it: records go to a broker, and a batch is marked as processed when all of it is there.
 * Settings are in a file; the producer's begin with "producer.". Ends when the engine does. */
public class Relay {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            settings.load(file);
        }
        Properties producing = new Properties();
        for (String name : settings.stringPropertyNames()) {
            if (name.startsWith("producer.")) {
                producing.put(name.substring("producer.".length()), settings.getProperty(name));
            }
        }
        var bytes = new ByteArraySerializer();
        var producer = new KafkaProducer<byte[], byte[]>(producing, bytes, bytes);
        var format = KeyValueHeaderChangeEventFormat.of(JsonByteArray.class, JsonByteArray.class, JsonByteArray.class);
        DebeziumEngine<ChangeEvent<byte[], byte[]>> engine = DebeziumEngine.create(format)
            .using(settings)
            .using((success, message, error) -> System.err.println("ended: " + success + " " + message + " " + error))
            .notifying((events, committer) -> {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (ChangeEvent<byte[], byte[]> event : events) {
                    sent.add(producer.send(record(event)));
                }
                for (int at = 0; at < sent.size(); at++) {
                    try {
                        sent.get(at).get();
                    } catch (java.util.concurrent.ExecutionException error) {
                        throw new RuntimeException(error);
                    }
                    committer.markProcessed(events.get(at));
                }
                committer.markBatchFinished();
            })
            .build();
        engine.run();
        System.exit(1);
    }

    private static ProducerRecord<byte[], byte[]> record(ChangeEvent<byte[], byte[]> event) {
        var record = new ProducerRecord<>(event.destination(), event.key(), event.value());
        for (Header<?> header : event.headers()) {
            if (!header.getKey().startsWith("__debezium.context")) {
                record.headers().add(header.getKey(), (byte[]) header.getValue());
            }
        }
        return record;
    }
}
