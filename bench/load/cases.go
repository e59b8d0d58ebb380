package load

import (
	"fmt"
	"slices"
	"strings"
)

// keyPlan says which keys the generator sends.
type keyPlan string

const (
	fresh    keyPlan = "fresh"    // a new key with each request
	repeated keyPlan = "repeated" // keys that were completed before the first round
	storm    keyPlan = "storm"    // the same new key over all connections, then the next one
)

// testCase is one way to serve the route.
type testCase struct {
	name        string
	flow        flow
	keys        keyPlan
	connections []int // nil for those of the settings, and also
	zooKeeper   bool  // uses the single ZooKeeper, or the ensemble
	ensemble    bool
	redis       bool
	full        bool // on the Redis with Settings.Records records
	postgres    bool // at 16 connections too, and the same for MariaDB
	mariadb     bool
}

// The number of clients in a duplicate storm, the connections at which the full store is
// compared with the empty one, and those at which the cases with a database are compared. poolSize is the number of
// connections to the database of each of these services.
const (
	stormClients    = 100
	fullConnections = 64
	sqlConnections  = 16
	poolSize        = sqlConnections + 1
)

// The names that the goals refer to.
const (
	bare              = "bare"
	plain             = "plain"
	redisLock         = "redislock"
	idemZooKeeper     = "idemkeeper-zookeeper"
	idemRedis         = "idemkeeper-redis"
	get               = "get"
	replay            = "replay"
	stormCase         = "storm"
	replayStorm       = "replay-100"
	idemZooKeeperFull = "idemkeeper-zookeeper-full"
	plainEnsemble     = "plain-ensemble"
	idemEnsemble      = "idemkeeper-zookeeper-ensemble"
	lease             = "lease"
	replayLease       = "replay-lease"
	replayRedis       = "replay-redis"
	own               = "own-postgres"
	ownBank           = "own-postgres-bank"
	replayOwn         = "replay-own-postgres"
	alone             = "business"
	aloneMariaDB      = "business-mariadb"
	alonePgx          = "business-pgx"
	idemJoined        = "idemkeeper-joined"
	idemPgx           = "idemkeeper-joined-pgx"
	idemMariaDB       = "idemkeeper-joined-mariadb"
	idemRows          = "idemkeeper-rows"
	replayJoined      = "replay-joined"
)

// cases is the table to add to.
var cases = []testCase{
	{name: bare, flow: bareFlow, keys: fresh},
	{name: plain, flow: plainFlow, keys: fresh, zooKeeper: true, redis: true},
	{name: redisLock, flow: redislockFlow, keys: fresh, redis: true},
	{name: lease, flow: leaseFlow, keys: fresh, redis: true},
	{name: idemZooKeeper, flow: zooKeeperFlow, keys: fresh, zooKeeper: true, redis: true},
	{name: idemRedis, flow: redisFlow, keys: fresh, redis: true},
	{name: get, flow: getFlow, keys: repeated, redis: true},
	{name: replay, flow: zooKeeperFlow, keys: repeated, zooKeeper: true, redis: true},
	{name: replayRedis, flow: redisFlow, keys: repeated, redis: true},
	{name: replayLease, flow: leaseFlow, keys: repeated, redis: true},
	{name: replayStorm, flow: zooKeeperFlow, keys: repeated, connections: []int{stormClients}, zooKeeper: true, redis: true},
	{name: stormCase, flow: stormFlow, keys: storm, connections: []int{stormClients}, zooKeeper: true, redis: true},
	{name: idemZooKeeperFull, flow: zooKeeperFlow, keys: fresh, connections: []int{fullConnections}, zooKeeper: true, redis: true, full: true},
	{name: plainEnsemble, flow: plainFlow, keys: fresh, zooKeeper: true, ensemble: true, redis: true},
	{name: idemEnsemble, flow: zooKeeperFlow, keys: fresh, zooKeeper: true, ensemble: true, redis: true},
	{name: alone, flow: businessFlow, keys: fresh, postgres: true},
	{name: alonePgx, flow: businessPgxFlow, keys: fresh, postgres: true},
	{name: own, flow: ownFlow, keys: fresh, postgres: true},
	{name: ownBank, flow: ownBankFlow, keys: fresh, postgres: true},
	{name: idemJoined, flow: joinedFlow, keys: fresh, postgres: true},
	{name: idemPgx, flow: joinedPgxFlow, keys: fresh, postgres: true},
	{name: idemRows, flow: rowsFlow, keys: fresh, postgres: true},
	{name: replayOwn, flow: ownFlow, keys: repeated, postgres: true},
	{name: replayJoined, flow: joinedFlow, keys: repeated, postgres: true},
	{name: aloneMariaDB, flow: businessMariaDBFlow, keys: fresh, mariadb: true},
	{name: idemMariaDB, flow: joinedMariaDBFlow, keys: fresh, mariadb: true},
}

// selectCases returns the cases of the settings in the order of the table.
func selectCases(s Settings) ([]testCase, error) {
	var all []string
	for _, c := range cases {
		all = append(all, c.name)
	}
	for _, name := range s.Cases {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no case %q, only %s", name, strings.Join(all, ", "))
		}
	}
	if len(s.Connections) == 0 || slices.Min(s.Connections) < 1 {
		return nil, fmt.Errorf("%v are not numbers of connections", s.Connections)
	}
	var selected []testCase
	for _, c := range cases {
		if len(s.Cases) > 0 && !slices.Contains(s.Cases, c.name) || c.ensemble && s.Ensemble < 2 || c.full && s.Records < 1 {
			continue
		}
		if c.connections == nil {
			c.connections = slices.Clone(s.Connections)
			if (c.postgres || c.mariadb) && !slices.Contains(c.connections, sqlConnections) {
				c.connections = append(c.connections, sqlConnections)
			}
		}
		selected = append(selected, c)
	}
	if s.Delay > 0 {
		selected = withTrip(selected)
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("the settings leave no case of %s", strings.Join(s.Cases, ", "))
	}
	return selected, nil
}

// withTrip adds one GET at one connection, the unit of the column with trips.
func withTrip(selected []testCase) []testCase {
	for i := range selected {
		if c := &selected[i]; c.name == get {
			if !slices.Contains(c.connections, 1) {
				c.connections = append(c.connections, 1)
			}
			return selected
		}
	}
	i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == get })
	trip := cases[i]
	trip.connections = []int{1}
	return append(selected, trip)
}

// caseNamed returns the row of the table.
func caseNamed(name string) (testCase, error) {
	i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })
	if i < 0 {
		return testCase{}, fmt.Errorf("there is no case %q", name)
	}
	return cases[i], nil
}
