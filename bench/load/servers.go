package load

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

type redisServer struct {
	*testserver.Redis
	client goredis.UniversalClient
}

type zooKeeperServers struct {
	hosts []string
	pids  []int
}

// servers starts those that the case is the first to need, and says how its service reaches them.
func (m *measurement) servers(ctx context.Context, r *runningCase) (config serviceConfig, err error) {
	config = serviceConfig{Case: r.name, Prefix: r.prefix, Profile: m.Profile}
	if r.testCase.redis {
		if r.redis, err = m.redisFor(r.testCase); err != nil {
			return config, err
		}
		if config.Redis, err = m.proxy.url(r.redis.URL()); err != nil {
			return config, err
		}
		if m.Delay > 0 {
			config.RedisPool = slices.Max(append(slices.Clone(m.Connections), stormClients))
		}
		r.pids.Redis = []int{r.redis.PID()}
	}
	if r.postgres {
		if config.Postgres, err = m.postgresFor(ctx, r.testCase); err != nil {
			return config, err
		}
	}
	if r.mariadb {
		if config.MariaDB, err = m.mariadbFor(ctx, r.testCase); err != nil {
			return config, err
		}
	}
	if r.zooKeeper {
		servers := m.zooKeeperFor(r.testCase)
		for _, host := range servers.hosts {
			address, err := m.proxy.address(host)
			if err != nil {
				return config, err
			}
			config.ZooKeeper = append(config.ZooKeeper, address)
		}
		r.pids.ZooKeeper, r.asked = servers.pids, servers.hosts[0]
	}
	return config, nil
}

func (m *measurement) redisFor(c testCase) (*redisServer, error) {
	which := &m.redis
	if c.full {
		which = &m.fullRedis
	}
	if *which != nil {
		return *which, nil
	}
	server := testserver.StartRedis(m.tb)
	client, err := redisstore.Connect(server.URL())
	if err != nil {
		return nil, err
	}
	m.tb.Cleanup(func() { _ = client.Close() })
	*which = &redisServer{server, client}
	return *which, nil
}

// postgresFor makes a database for a case, and returns its URL.
func (m *measurement) postgresFor(ctx context.Context, c testCase) (string, error) {
	if m.postgres == nil {
		m.postgres = testserver.StartPostgres(m.tb, "-c", "fsync=off", "-c", "max_connections=400")
	}
	u, err := url.Parse(m.postgres.URL())
	if err != nil {
		return "", err
	}
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, fmt.Sprintf("CREATE DATABASE %q", c.name)); err != nil {
		return "", err
	}
	u.Path = c.name
	return m.proxy.url(u.String())
}

// mariadbFor makes a database for a case, and returns its data source name.
func (m *measurement) mariadbFor(ctx context.Context, c testCase) (string, error) {
	if m.mariadb == nil {
		m.mariadb = testserver.StartMariaDB(m.tb, "--innodb-flush-method=nosync")
	}
	u, err := url.Parse(m.mariadb.URL())
	if err != nil {
		return "", err
	}
	// The driver sends arguments within the statement, which saves a trip for each of them.
	name := func(address, database string) string {
		return fmt.Sprintf("%s@tcp(%s)/%s?interpolateParams=true", u.User.Username(), address, database)
	}
	db, err := sql.Open("mysql", name(u.Host, ""))
	if err != nil {
		return "", err
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(ctx, fmt.Sprintf("CREATE DATABASE `%s`", c.name)); err != nil {
		return "", err
	}
	address, err := m.proxy.address(u.Host)
	return name(address, c.name), err
}

func (m *measurement) zooKeeperFor(c testCase) *zooKeeperServers {
	options := []testserver.ZooKeeperOption{testserver.AsInProduction(), testserver.WithTickTime(tickTime)}
	switch {
	case c.ensemble && m.ensemble == nil:
		started := testserver.StartEnsemble(m.tb, m.Ensemble, options...)
		m.ensemble = &zooKeeperServers{hosts: started.Hosts()}
		for _, member := range started.Members() {
			m.ensemble.pids = append(m.ensemble.pids, member.PID())
		}
	case !c.ensemble && m.zooKeeper == nil:
		started := testserver.StartZooKeeper(m.tb, options...)
		m.zooKeeper = &zooKeeperServers{hosts: started.Hosts(), pids: []int{started.PID()}}
	}
	if c.ensemble {
		return m.ensemble
	}
	return m.zooKeeper
}
