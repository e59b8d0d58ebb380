import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.format.DateTimeFormatter;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/** Pays once, however often it has to ask: java Pay.java URL KEY */
public class Pay {
    private static final Set<Integer> REPEATED = Set.of(429, 502, 503, 504);

    /** Sends a request until there is a final answer. */
    static HttpResponse<String> post(URI uri, String key, String body, int attempts) throws InterruptedException {
        HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(5)).build();
        HttpRequest request = HttpRequest.newBuilder(uri).timeout(Duration.ofSeconds(30))
                .header("Idempotency-Key", key)
                .header("Authorization", "Bearer demo")
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        boolean askedOnce = false;
        for (int attempt = 0; attempt < attempts; attempt++) {
            long pause = ThreadLocalRandom.current().nextLong((long) Math.min(5_000, 100 * Math.pow(2, attempt)));
            try {
                HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
                if (!worthRepeating(answer, askedOnce)) {
                    return answer;
                }
                askedOnce |= answer.statusCode() != 409 && answer.statusCode() != 425 && !REPEATED.contains(answer.statusCode());
                pause += askedFor(answer).orElse(0);
            } catch (IOException error) { // no answer, or half of one
                System.err.println(error);
            }
            Thread.sleep(pause);
        }
        throw new IllegalStateException("no final answer; try again later with the same key");
    }

    static boolean worthRepeating(HttpResponse<String> answer, boolean askedOnce) {
        if (answer.headers().firstValue("Idempotent-Replayed").orElse("").equals("true")) {
            return false; // the outcome, which does not change
        }
        int status = answer.statusCode();
        if (REPEATED.contains(status) || status == 409 && answer.body().contains("\"in-progress\"")) {
            return true;
        }
        boolean undecided = status == 408 || status == 499 || status >= 500;
        if (askedFor(answer).isPresent() && (undecided || status == 409 || status == 425)) {
            return true;
        }
        return undecided && !askedOnce; // one repeat tells what became of it
    }

    /** The pause in milliseconds that the server asks for. Retry-After is a number or a date. */
    static OptionalLong askedFor(HttpResponse<String> answer) {
        String value = answer.headers().firstValue("Retry-After").orElse("");
        try {
            long pause = value.matches("[0-9]+") ? 1_000 * Long.parseLong(value)
                    : Instant.from(DateTimeFormatter.RFC_1123_DATE_TIME.parse(value)).toEpochMilli() - System.currentTimeMillis();
            return OptionalLong.of(Math.max(0, pause));
        } catch (DateTimeException | NumberFormatException neither) {
            return OptionalLong.empty();
        }
    }

    public static void main(String[] args) throws Exception {
        String body = """
                {"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"%s"}""".formatted(args[1]);
        HttpResponse<String> answer = post(URI.create(args[0] + "/v1/payments"), args[1], body, 8);
        System.out.println(answer.body());
        System.exit(answer.statusCode() == 201 ? 0 : 1);
    }
}
