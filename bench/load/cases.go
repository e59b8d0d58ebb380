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
	also        int   // one more number of connections; 0 for none
	zooKeeper   bool  // uses the single ZooKeeper, or the ensemble
	ensemble    bool
	redis       bool
	full        bool // on the Redis with Settings.Records records
	postgres    bool
}

// The number of clients in a duplicate storm, the connections at which the full store is
// compared with the empty one, and those at which the cases with a database are compared. Their
// pools of connections to the database have room for so many.
const (
	stormClients    = 100
	fullConnections = 64
	sqlConnections  = 16
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
	business          = "business"
	idemJoined        = "idemkeeper-joined"
)

// cases is the table to add to.
var cases = []testCase{
	{name: bare, flow: bareFlow, keys: fresh},
	{name: plain, flow: plainFlow, keys: fresh, zooKeeper: true, redis: true},
	{name: redisLock, flow: redislockFlow, keys: fresh, redis: true},
	{name: idemZooKeeper, flow: zooKeeperFlow, keys: fresh, zooKeeper: true, redis: true},
	{name: idemRedis, flow: redisFlow, keys: fresh, redis: true},
	{name: get, flow: getFlow, keys: repeated, redis: true},
	{name: replay, flow: zooKeeperFlow, keys: repeated, zooKeeper: true, redis: true},
	{name: replayStorm, flow: zooKeeperFlow, keys: repeated, connections: []int{stormClients}, zooKeeper: true, redis: true},
	{name: stormCase, flow: stormFlow, keys: storm, connections: []int{stormClients}, zooKeeper: true, redis: true},
	{name: idemZooKeeperFull, flow: zooKeeperFlow, keys: fresh, connections: []int{fullConnections}, zooKeeper: true, redis: true, full: true},
	{name: plainEnsemble, flow: plainFlow, keys: fresh, zooKeeper: true, ensemble: true, redis: true},
	{name: idemEnsemble, flow: zooKeeperFlow, keys: fresh, zooKeeper: true, ensemble: true, redis: true},
	{name: business, flow: businessFlow, keys: fresh, also: sqlConnections, postgres: true},
	{name: idemJoined, flow: joinedFlow, keys: fresh, also: sqlConnections, postgres: true},
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
			if c.also > 0 && !slices.Contains(c.connections, c.also) {
				c.connections = append(c.connections, c.also)
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
