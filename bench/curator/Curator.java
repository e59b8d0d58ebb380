import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Acquires and releases Apache Curator's InterProcessMutex.
 *
 *   java Curator.java SERVERS SESSION-MS CLIENTS CALLERS PATH...
 *
 * The callers are spread over the clients and over the paths, which are made if
 * they are missing. Each line of standard input is a number of pairs to make
 * together; each is answered by the nanoseconds that they took.
 */
public class Curator {
    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[1]), clients = Integer.parseInt(args[2]), callers = Integer.parseInt(args[3]);
        List<CuratorFramework> frameworks = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            CuratorFramework f = CuratorFrameworkFactory.builder().connectString(args[0])
                .sessionTimeoutMs(session).retryPolicy(new ExponentialBackoffRetry(100, 3)).build();
            f.start();
            f.blockUntilConnected();
            frameworks.add(f);
        }
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            mutexes.add(new InterProcessMutex(frameworks.get(i % clients), args[4 + i % (args.length - 4)]));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            System.out.println(run(mutexes, Long.parseLong(line.trim())));
        }
        for (CuratorFramework f : frameworks) f.close();
    }

    static long run(List<InterProcessMutex> mutexes, long pairs) throws Exception {
        AtomicLong left = new AtomicLong(pairs);
        CountDownLatch done = new CountDownLatch(mutexes.size());
        long start = System.nanoTime();
        for (InterProcessMutex m : mutexes) {
            new Thread(() -> {
                try {
                    while (left.getAndDecrement() > 0) {
                        m.acquire();
                        m.release();
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(1);
                } finally {
                    done.countDown();
                }
            }).start();
        }
        done.await();
        return System.nanoTime() - start;
    }
}
