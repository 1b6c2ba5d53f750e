import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.JsonByteArray;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Properties;

/** Runs Debezium's engine with the settings in a file, and writes each record as a line of another file: topic, key,
 * value and headers, in base64. Ends when its input ends. */
public class Record {
    private static String text(byte[] data) {
        return data == null ? "-" : "=" + Base64.getEncoder().encodeToString(data);
    }

    private static String line(ChangeEvent<byte[], byte[]> event) {
        StringBuilder line = new StringBuilder();
        line.append(event.destination()).append(' ').append(text(event.key())).append(' ').append(text(event.value()));
        for (Header<?> header : event.headers()) {
            if (!header.getKey().startsWith("__debezium.context")) {
                line.append(' ').append(header.getKey()).append(text((byte[]) header.getValue()));
            }
        }
        return line.toString();
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (InputStream file = Files.newInputStream(Path.of(arguments[0]))) {
            settings.load(file);
        }
        PrintStream out = new PrintStream(new FileOutputStream(arguments[1]), true);
        var format = KeyValueHeaderChangeEventFormat.of(JsonByteArray.class, JsonByteArray.class, JsonByteArray.class);
        DebeziumEngine<ChangeEvent<byte[], byte[]>> engine = DebeziumEngine.create(format)
            .using(settings)
            .using((success, message, error) -> System.err.println("ended: " + success + " " + message + " " + error))
            .notifying(event -> out.println(line(event)))
            .build();
        new Thread(engine).start();
        while (System.in.read() >= 0) {
            continue;
        }
        System.exit(0);
    }
}
