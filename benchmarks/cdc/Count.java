import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.JsonByteArray;
import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Properties;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/** Runs Debezium's engine with the settings in a file until a consumer has counted so many changes: of records as
 * Connect's objects, or as JSON. A third file gets the columns client and number of each row and the microseconds since
 * 1970 at which the consumer had it. */
public class Count {
    private static long left;
    private static PrintStream seen;

    private static void count(int records) {
        left -= records;
        if (left <= 0) {
            Runtime.getRuntime().halt(0);
        }
    }

    private static void note(Object event) {
        Struct row = ((Struct) ((ChangeEvent<SourceRecord, SourceRecord>) event).value().value()).getStruct("after");
        Instant now = Instant.now();
        long micros = now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
        seen.println(row.get("client") + " " + row.get("number") + " " + micros);
    }

    private static <R> DebeziumEngine<ChangeEvent<R, R>> engine(
            DebeziumEngine.Builder<ChangeEvent<R, R>> builder, Properties settings) {
        return builder.using(settings)
            .using((success, message, error) -> {
                System.err.println("ended: " + message + " " + error);
                Runtime.getRuntime().halt(1);
            })
            .notifying((records, committer) -> {
                for (ChangeEvent<R, R> record : records) {
                    if (seen != null) {
                        note(record);
                    }
                    committer.markProcessed(record);
                }
                if (seen != null) {
                    seen.flush();
                }
                committer.markBatchFinished();
                count(records.size());
            })
            .build();
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            settings.load(file);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(0)));
        left = Long.parseLong(arguments[1]);
        if (arguments.length > 3) {
            seen = new PrintStream(new BufferedOutputStream(new FileOutputStream(arguments[3])), false);
        }
        if (arguments[2].equals("json")) {
            engine(DebeziumEngine.create(JsonByteArray.class), settings).run();
        } else {
            engine(DebeziumEngine.create(Connect.class), settings).run();
        }
    }
}
