package load

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"

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

// databaseFor makes a database for a case, and returns its URL.
func (m *measurement) databaseFor(ctx context.Context, c testCase) (string, error) {
	if m.postgres == nil {
		m.postgres = testserver.StartPostgres(m.tb)
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
