package server

import (
	"net"
	"strconv"
	"time"
)

// LimitWritesTo is LimitWrites with another limit.
func LimitWritesTo(l net.Listener, limit time.Duration) net.Listener {
	return &impatientListener{l, limit}
}

// Routes are the routes of a server, as "GET /path".
func Routes(cfg Config) (routes []string, err error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	for _, r := range s.gin.Routes() {
		routes = append(routes, r.Method+" "+r.Path)
	}
	return routes, nil
}

// StatusOf is the HTTP status of a code.
func StatusOf(code string) string { return strconv.Itoa(kindOf(code).status) }
