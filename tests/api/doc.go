// Package api holds the tests that validate the sample's API against its description, and run
// its collection of requests. They need libraries of their own. With the build tag grpcurl they
// also run the lines for grpcurl, as make api does.
package api
