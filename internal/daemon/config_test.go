package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"samovar/internal/fault"
)

func TestDefault(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Node = "n1"
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if c.Etcd.Members["n1"] == "" || c.Etcd.Clients["n1"] == "" || c.Socket != filepath.Join(c.Dir, "nbd.sock") || c.Etcd.Token == "" {
		t.Fatalf("%+v", c)
	}
	if err := c.Check(); err != nil { // once more changes nothing
		t.Fatal(err)
	}
}

func three() map[string]string {
	return map[string]string{"n1": "127.0.0.1:1", "n2": "127.0.0.1:2", "n3": "127.0.0.1:3"}
}

// Every refusal names what is wrong and the way out.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		edit  func(*Config)
		kind  fault.Kind
		names string // words of the message, by commas
	}{
		{func(c *Config) { c.Node = "N 1" }, fault.Invalid, "node N 1,small letters"},
		{func(c *Config) { c.Node = "" }, fault.Invalid, "node,1 to 63"},
		{func(c *Config) { c.Node = strings.Repeat("a", 64) }, fault.Invalid, "1 to 63"},
		{func(c *Config) { c.Node = "-a" }, fault.Invalid, "node -a"},
		{func(c *Config) { c.Socket = "/" + strings.Repeat("s", 101) }, fault.Invalid, "socket,100 bytes"},
		{func(c *Config) { c.Dir = "/" + strings.Repeat("d", 101) }, fault.Invalid, "socket,shorter"},
		{func(c *Config) { c.API = "7700" }, fault.Invalid, "api 7700,host:port"},
		{func(c *Config) { c.API = "127.0.0.1:0" }, fault.Invalid, "api,1 to 65535"},
		{func(c *Config) { c.Data = "127.0.0.1:65536" }, fault.Invalid, "data,1 to 65535"},
		{func(c *Config) { c.Data = "127.0.0.1:http" }, fault.Invalid, "data,1 to 65535"},
		{func(c *Config) { c.NBD = "nowhere" }, fault.Invalid, "nbd nowhere,host:port"},
		{func(c *Config) { c.API = "10.0.0.1:7700" }, fault.Permission, "api 10.0.0.1:7700,--insecure"},
		{func(c *Config) { c.Data = ":7701" }, fault.Permission, "data :7701,--insecure"},
		{func(c *Config) { c.NBD = "0.0.0.0:10809" }, fault.Permission, "nbd,--insecure"},
		{func(c *Config) { c.API = "n1.example.org:7700" }, fault.Permission, "api,--insecure"},
		{func(c *Config) { c.Insecure, c.API = true, "0.0.0.0:7700" }, fault.Invalid, "api 0.0.0.0:7700,reach this node"},
		{func(c *Config) { c.Insecure, c.Data = true, "[::]:7701" }, fault.Invalid, "data,reach this node"},
		{func(c *Config) { c.Insecure, c.Data = true, ":7701" }, fault.Invalid, "data,reach this node"},
		{func(c *Config) { c.PingTimeout = Duration(time.Second - 1) }, fault.Invalid, "pingTimeout,1s to 5m"},
		{func(c *Config) { c.PingTimeout = Duration(time.Hour) }, fault.Invalid, "pingTimeout 1h,1s to 5m"},
		{func(c *Config) { c.IdleDetach = -1 }, fault.Invalid, "idleDetach,0s to 1h"},
		{func(c *Config) { c.IdleDetach = Duration(2 * time.Hour) }, fault.Invalid, "idleDetach,0s to 1h"},
		{func(c *Config) { c.LogLevel = "loud" }, fault.Invalid, "logLevel loud,debug"},
		{func(c *Config) { c.LogFormat = "xml" }, fault.Invalid, "logFormat xml,json"},
		{func(c *Config) { c.Etcd = EtcdConfig{Endpoints: []string{"x:1"}, Members: three()} }, fault.Invalid, "etcd,either"},
		{func(c *Config) { m := three(); delete(m, "n3"); c.Etcd = EtcdConfig{Members: m, Clients: m} }, fault.Invalid, "1, 3 or 5"},
		{func(c *Config) { m := three(); delete(m, "n2"); c.Etcd = EtcdConfig{Members: three(), Clients: m} }, fault.Invalid, "member n2,clients"},
		{func(c *Config) { m := three(); m["n4"] = "x:1"; c.Etcd = EtcdConfig{Members: three(), Clients: m} }, fault.Invalid, "clients names n4"},
		{func(c *Config) {
			m := three()
			delete(m, "n2")
			m["N2"] = "127.0.0.1:2"
			c.Etcd = EtcdConfig{Members: m, Clients: m}
		}, fault.Invalid, "member N2,small letters"},
		{func(c *Config) {
			m := three()
			m["n1"] = "10.0.0.1:1"
			c.Etcd = EtcdConfig{Members: m, Clients: three()}
		}, fault.Permission, "etcd 10.0.0.1:1"},
		{func(c *Config) { m := three(); m["n1"] = "10.0.0.1"; c.Etcd = EtcdConfig{Members: m, Clients: three()} }, fault.Invalid, "etcd 10.0.0.1,host:port"},
		{func(c *Config) { c.Node, c.Witness, c.Etcd = "w", true, EtcdConfig{Members: three(), Clients: three()} }, fault.Invalid, "witness,node w"},
	} {
		c := Default()
		c.Node, c.Dir = "n1", "/srv/samovar"
		test.edit(&c)
		err := c.Check()
		if !fault.Is(err, test.kind) {
			t.Errorf("%s: %v", test.names, err)
			continue
		}
		for name := range strings.SplitSeq(strings.ReplaceAll(test.names, "1, 3", "1; 3"), ",") {
			if name = strings.ReplaceAll(name, ";", ","); !strings.Contains(err.Error(), name) {
				t.Errorf("%q does not name %q", err, name)
			}
		}
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	for what, edit := range map[string]func(*Config){
		"loopback by name": func(c *Config) { c.API = "localhost:7700" },
		"loopback, six":    func(c *Config) { c.Data = "[::1]:7701" },
		"no tcp for nbd":   func(c *Config) { c.NBD = "none" },
		"insecure":         func(c *Config) { c.Insecure, c.API, c.NBD = true, "10.0.0.1:7700", "0.0.0.0:10809" },
		"no idle time":     func(c *Config) { c.IdleDetach = 0 },
		"external etcd":    func(c *Config) { c.Etcd = EtcdConfig{Endpoints: []string{"10.0.0.1:2379"}} },
		"three members":    func(c *Config) { c.Etcd = EtcdConfig{Members: three(), Clients: three()} },
		"a witness": func(c *Config) {
			c.Node, c.Witness, c.Etcd = "n2", true, EtcdConfig{Members: three(), Clients: three()}
		},
		"relative folder": func(c *Config) { c.Dir = "x" },
	} {
		c := Default()
		c.Node = "n1"
		edit(&c)
		if err := c.Check(); err != nil || !filepath.IsAbs(c.Dir) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c := Config{Node: "n2", Etcd: EtcdConfig{Clients: three()}}
	if got := c.endpoints(); !slices.Equal(got, []string{"127.0.0.1:2", "127.0.0.1:1", "127.0.0.1:3"}) {
		t.Error(got)
	}
}

func TestReadConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")
	for _, test := range []struct {
		text  string
		kind  fault.Kind
		names string
	}{
		{"", fault.None, ""},
		{"node: n7\npingTimeout: 2s\n", fault.None, ""},
		{"nod: n7\n", fault.Invalid, "nod"},
		{"pingTimeout: soon\n", fault.Invalid, "soon"},
		{"pingTimeout: 5\n", fault.Invalid, "500ms"},
		{"node: [\n", fault.Invalid, path},
	} {
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadConfig(path)
		if fault.KindOf(err) != test.kind {
			t.Errorf("%q: %v", test.text, err)
			continue
		}
		if err != nil && (!strings.Contains(err.Error(), test.names) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%q: %v", test.text, err)
		}
		if strings.HasPrefix(test.text, "node: n7") && (c.Node != "n7" || time.Duration(c.PingTimeout) != 2*time.Second || c.API != Default().API) {
			t.Errorf("%+v", c)
		}
	}
	if _, err := ReadConfig(filepath.Join(dir, "none")); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if _, err := ReadConfig(dir); !fault.Is(err, fault.IO) {
		t.Error(err)
	}
}

// Flags go before the file; what is wrong with them is told before anything starts.
func TestCommand(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("node: n7\nlogLevel: loud\napi: 127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, names string }{
		{"--config " + path, "logLevel loud"},
		{"--config " + path + " --log-level warn --node N", "node N"},
		{"--config " + path + " --log-level warn --api 10.0.0.1:1", "api 10.0.0.1:1"},
		{"--config " + path + " --log-level warn --ping-timeout 1ms", "pingTimeout 1ms"},
		{"--config /nowhere/c.yaml", "/nowhere/c.yaml"},
		{"--node n1 extra", "extra"},
		{"--idle-detach soon", "soon"},
	} {
		var out bytes.Buffer
		cmd := Command("test", &out)
		cmd.SetArgs(strings.Fields(test.args))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), test.names) {
			t.Errorf("%s: %v", test.args, err)
		}
	}
}
