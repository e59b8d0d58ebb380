package doctor

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
)

// redisCheck checks the servers of --redis.
type redisCheck struct {
	*report

	flags *servers.Redis
}

// check checks every server and returns their clocks. It returns nil if a
// primary cannot be reached.
func (c *redisCheck) check(ctx context.Context, client goredis.UniversalClient) []clockReading {
	answering := c.checkSentinels(ctx)
	var mu sync.Mutex
	var primaries, replicas []nodeReport
	note := func(to *[]nodeReport, n nodeReport) {
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, n)
	}
	cluster, ok := client.(*goredis.ClusterClient)
	if !ok {
		one := client.(*goredis.Client)
		primaries = []nodeReport{checkPrimary(ctx, one)}
		replicas = c.checkSentinelReplicas(ctx, answering, one)
	} else {
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			note(&primaries, checkPrimary(ctx, node))
			return nil
		})
		if err == nil {
			err = cluster.ForEachSlave(ctx, func(ctx context.Context, node *goredis.Client) error {
				note(&replicas, checkReplica(ctx, node))
				return nil
			})
		}
		if err != nil {
			c.failf("redis", "%s: cluster: %v", strings.Join(cluster.Options().Addrs, ", "), err)
			return nil
		}
	}
	all := slices.Concat(primaries, replicas)
	slices.SortStableFunc(all, func(a, b nodeReport) int { return strings.Compare(a.addr, b.addr) })
	var clocks []clockReading
	reached := len(primaries) > 0
	for _, n := range all {
		c.findings = append(c.findings, n.findings...)
		clocks = append(clocks, n.clocks...)
	}
	for _, n := range primaries {
		reached = reached && n.clocks != nil
	}
	if !reached {
		return nil
	}
	c.checkWrites(ctx, client)
	return clocks
}

// nodeReport holds the findings about one server.
type nodeReport struct {
	report

	addr   string
	clocks []clockReading
}

func checkReplica(ctx context.Context, node *goredis.Client) nodeReport {
	n := nodeReport{addr: node.Options().Addr}
	sent := time.Now()
	now, err := node.Time(ctx).Result()
	if err != nil {
		n.failf("redis", "%s: replica: %v", n.addr, err)
		return n
	}
	n.okf("redis", "%s answers and is a replica", n.addr)
	n.clocks = []clockReading{readClock("Redis "+n.addr, now, sent)}
	const check = "redis-eviction"
	switch policy := evictionPolicy(ctx, node, infoOf(ctx, node)); policy {
	case "noeviction":
		n.okf(check, "%s, a replica, has maxmemory-policy noeviction", n.addr)
	case "":
		n.warnf(check, "%s, a replica, does not tell its maxmemory-policy; it must be noeviction", n.addr)
	default:
		n.warnf(check, "%s, a replica, has maxmemory-policy %s: as a primary it would evict records; set it to noeviction", n.addr, policy)
	}
	n.checkReadOnly(ctx, node)
	return n
}

// checkReadOnly looks whether a server goes on taking writes after a fail-over has made it a replica.
func (n *nodeReport) checkReadOnly(ctx context.Context, node *goredis.Client) {
	const check = "redis-read-only"
	switch config(ctx, node, "replica-read-only") {
	case "yes":
		n.okf(check, "%s takes no writes as a replica", n.addr)
	case "":
		n.warnf(check, "%s does not tell its replica-read-only; it must be yes", n.addr)
	default:
		n.failf(check, "%s has replica-read-only no: after a fail-over operations could run twice; set it to yes", n.addr)
	}
}

// evictionPolicy is "" if the server does not tell it.
func evictionPolicy(ctx context.Context, node *goredis.Client, info map[string]string) string {
	if policy := info["maxmemory_policy"]; policy != "" {
		return policy
	}
	return config(ctx, node, "maxmemory-policy")
}

func checkPrimary(ctx context.Context, node *goredis.Client) nodeReport {
	n := nodeReport{addr: node.Options().Addr}
	if _, _, err := net.SplitHostPort(n.addr); err != nil { // the client library has no address for a primary of sentinels
		n.addr = "the sentinels' primary"
	}
	sent := time.Now()
	now, err := node.Time(ctx).Result()
	if err != nil {
		n.failf("redis", "%s: %v", n.addr, err)
		return n
	}
	n.clocks = []clockReading{readClock("Redis "+n.addr, now, sent)}
	n.okf("redis", "%s answers within %v", n.addr, time.Since(sent).Round(time.Microsecond))
	info := infoOf(ctx, node)
	n.checkVersion(info["redis_version"])
	n.checkEviction(evictionPolicy(ctx, node, info))
	n.checkReadOnly(ctx, node)
	n.checkPersistence(info)
	n.checkReplicas(info)
	return n
}

// infoOf is the answer to INFO, empty if INFO is not allowed.
func infoOf(ctx context.Context, node *goredis.Client) map[string]string {
	text, err := node.Info(ctx).Result()
	if err != nil {
		return nil
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			info[name] = value
		}
	}
	return info
}

func config(ctx context.Context, node *goredis.Client, name string) string {
	values, err := node.ConfigGet(ctx, name).Result()
	if err != nil {
		return ""
	}
	return values[name]
}

func (n *nodeReport) checkVersion(version string) {
	const check = "redis-version"
	var major, minor int
	switch _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); {
	case err != nil:
		n.warnf(check, "%s does not tell its version; it must be 6.2 or later", n.addr)
	case major < 6 || major == 6 && minor < 2:
		n.failf(check, "%s is %s; it must be 6.2 or later", n.addr, version)
	default:
		n.okf(check, "%s is %s", n.addr, version)
	}
}

func (n *nodeReport) checkEviction(policy string) {
	const check = "redis-eviction"
	switch policy {
	case "noeviction":
		n.okf(check, "%s has maxmemory-policy noeviction", n.addr)
	case "":
		n.warnf(check, "%s does not tell its maxmemory-policy; it must be noeviction", n.addr)
	default:
		n.failf(check, "%s has maxmemory-policy %s: operations with evicted records can run twice; set it to noeviction", n.addr, policy)
	}
}

func (n *nodeReport) checkPersistence(info map[string]string) {
	const check = "redis-persistence"
	switch {
	case info["aof_enabled"] == "":
		n.warnf(check, "%s does not tell how it persists its data", n.addr)
	case info["aof_enabled"] != "1":
		n.warnf(check, "%s has no append-only file: a restart loses its latest records, or all of them", n.addr)
	case info["aof_last_write_status"] == "err":
		n.failf(check, "%s could not write its append-only file", n.addr)
	case info["rdb_last_bgsave_status"] == "err":
		n.warnf(check, "%s could not write its last snapshot; its append-only file is fine", n.addr)
	default:
		n.okf(check, "%s writes an append-only file", n.addr)
	}
}

func (n *nodeReport) checkReplicas(info map[string]string) {
	const check = "redis-replicas"
	role, count := info["role"], info["connected_slaves"]
	switch {
	case role == "":
		n.warnf(check, "%s does not tell its replicas", n.addr)
		return
	case role != "master":
		n.failf(check, "%s is a replica and takes no writes", n.addr)
		return
	case count == "0":
		n.okf(check, "%s has no replica to take over from it", n.addr)
		return
	}
	behind, offline := int64(0), 0
	offset, _ := strconv.ParseInt(info["master_repl_offset"], 10, 64)
	for name, value := range info {
		digits, isReplica := strings.CutPrefix(name, "slave")
		if _, err := strconv.Atoi(digits); err != nil || !isReplica {
			continue
		}
		for field := range strings.SplitSeq(value, ",") {
			k, v, _ := strings.Cut(field, "=")
			if at, err := strconv.ParseInt(v, 10, 64); k == "offset" && err == nil {
				behind = max(behind, offset-at)
			}
			if k == "state" && v != "online" {
				offline++
			}
		}
	}
	n.gradef(offline == 0, check, "%s has %s, %d of them not online, and the most stale one lacks %d bytes; writes do not wait for them, so a fail-over can lose the latest",
		n.addr, count, offline, behind)
}

// checkWrites writes to every shard and so to every primary.
func (c *redisCheck) checkWrites(ctx context.Context, client goredis.UniversalClient) {
	sent := time.Now()
	_, err := client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for shard := range redislock.Shards {
			pipe.Set(ctx, fmt.Sprintf("%s:{%02x}:doctor", c.flags.Prefix, shard), "", time.Second)
		}
		return nil
	})
	if err != nil {
		c.failf("redis-write", "not every shard takes a write: %v", err)
		return
	}
	c.okf("redis-write", "all %d shards within %v", redislock.Shards, time.Since(sent).Round(time.Microsecond))
}

// checkSentinels asks the sentinels of --redis for the primary, and returns the ones
// that answered.
func (c *redisCheck) checkSentinels(ctx context.Context) (answering []string) {
	const check = "sentinel"
	addrs, master := sentinels(c.flags.URL)
	first := ""
	for _, addr := range addrs {
		primary, err := c.askSentinel(ctx, addr, master)
		switch {
		case err != nil:
			c.failf(check, "%s: %v", addr, err)
			continue
		case first != "" && primary != first:
			c.warnf(check, "%s names %s as the primary of %s, another sentinel %s", addr, primary, master, first)
		default:
			c.okf(check, "%s: the primary of %s is %s", addr, master, primary)
			first = primary
		}
		answering = append(answering, addr)
	}
	return answering
}

// askSentinel asks one sentinel for the address of a primary.
func (c *redisCheck) askSentinel(ctx context.Context, addr, master string) (primary string, err error) {
	err = c.withSentinel(ctx, addr, func(ctx context.Context, s *goredis.SentinelClient) error {
		at, err := s.GetMasterAddrByName(ctx, master).Result()
		primary = strings.Join(at, ":")
		return err
	})
	return primary, err
}

func (c *redisCheck) withSentinel(ctx context.Context, addr string, f func(context.Context, *goredis.SentinelClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	o := goredis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, DialerRetries: 1}
	if strings.HasPrefix(c.flags.URL, "rediss") {
		o.TLSConfig = c.flags.TLS.Clone() // the certificate is for the sentinel's own name
	}
	client := goredis.NewSentinelClient(&o)
	defer func() { _ = client.Close() }()
	return f(ctx, client)
}

// checkSentinelReplicas checks the replicas that a sentinel knows. One of them is the
// next primary. like is a client of the primary. Sentinels never forget a replica that
// is gone for good, so an unreachable one is only a warning.
func (c *redisCheck) checkSentinelReplicas(ctx context.Context, addrs []string, like *goredis.Client) []nodeReport {
	_, master := sentinels(c.flags.URL)
	var known []map[string]string
	for _, addr := range addrs {
		err := c.withSentinel(ctx, addr, func(ctx context.Context, s *goredis.SentinelClient) (err error) {
			known, err = s.Replicas(ctx, master).Result()
			return err
		})
		if err == nil {
			break
		}
	}
	looks := make([]*nodeReport, len(known))
	var wg sync.WaitGroup
	for i, replica := range known {
		o := like.Options()
		node := goredis.NewClient(&goredis.Options{
			Addr: net.JoinHostPort(replica["ip"], replica["port"]), Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig,
			ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
			DialerRetries: 1, MaintNotificationsConfig: o.MaintNotificationsConfig,
		})
		wg.Go(func() {
			defer func() { _ = node.Close() }()
			n := checkReplica(ctx, node)
			looks[i] = &n
		})
	}
	wg.Wait()
	var all []nodeReport
	for _, n := range looks {
		if n.clocks == nil {
			c.warnf("redis", "%s, a replica known to the sentinels, does not answer", n.addr)
			continue
		}
		all = append(all, *n)
	}
	return all
}

// sentinels parses redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER, and the same
// with rediss. The store's own client has accepted the URL before.
func sentinels(url string) (addrs []string, master string) {
	_, rest, found := strings.Cut(url, "+sentinel://")
	if !found {
		return nil, ""
	}
	hosts, path, _ := strings.Cut(rest, "/")
	hosts = hosts[strings.LastIndexByte(hosts, '@')+1:]
	for host := range strings.SplitSeq(hosts, ",") {
		host = strings.TrimSpace(host)
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "26379")
		}
		addrs = append(addrs, host)
	}
	master, _, _ = strings.Cut(path, "/")
	return addrs, master
}
