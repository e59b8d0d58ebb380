package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// WebProxy is an nginx or a HAProxy.
type WebProxy struct {
	*instance
	addr, dir string
}

// URL returns the address of the proxy as a URL.
func (p *WebProxy) URL() string { return "http://" + p.addr }

// StartNginx starts nginx. conf returns what stands in the context http of its configuration, with a
// server that listens on the address.
func StartNginx(tb testing.TB, conf func(address string) string) *WebProxy {
	tb.Helper()
	return startWebProxy(tb, "nginx", []string{"-p", ".", "-e", "stderr", "-c"}, func(address string) string {
		// One process without a master, so that its end is the end of nginx. It keeps its user, and
		// writes only below its directory.
		return "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n" +
			"client_body_temp_path body;\nproxy_temp_path proxy;\nfastcgi_temp_path fastcgi;\nuwsgi_temp_path uwsgi;\nscgi_temp_path scgi;\n" +
			conf(address) + "\n}\n"
	})
}

// StartHAProxy starts HAProxy. conf returns its configuration, with a frontend that listens on the address.
func StartHAProxy(tb testing.TB, conf func(address string) string) *WebProxy {
	tb.Helper()
	return startWebProxy(tb, "haproxy", []string{"-db", "-f"}, conf)
}

// startWebProxy starts a program whose last argument is its configuration.
func startWebProxy(tb testing.TB, name string, args []string, conf func(address string) string) *WebProxy {
	tb.Helper()
	needsServer(tb)
	path, err := findProgram(name)
	if err != nil {
		tb.Fatal(err)
	}
	p := &WebProxy{dir: tb.TempDir()}
	file := filepath.Join(p.dir, name+".conf")
	held, err := retryOnBind(1, func(nums []int) error {
		p.addr = loopback(nums[0])
		if err := os.WriteFile(file, []byte(conf(p.addr)), 0o644); err != nil {
			return err
		}
		p.instance = &instance{
			prog: program{
				name: name + " " + p.addr, path: path, dir: p.dir, log: filepath.Join(p.dir, "server.log"),
				args: append(slices.Clip(args), file),
			},
			ready: func(int) error {
				conn, err := net.DialTimeout("tcp", p.addr, askTimeout)
				if err != nil {
					return err
				}
				return conn.Close()
			},
		}
		return p.start()
	})
	if err != nil {
		tb.Fatal(fmt.Errorf("testserver: %s: %w", name, err))
	}
	tb.Cleanup(held.release)
	p.own(tb)
	return p
}
