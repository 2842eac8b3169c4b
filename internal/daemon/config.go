package daemon

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"samovar/internal/fault"
	"samovar/internal/store"
)

// Config is the configuration file of a node, in YAML. Every field has a default that makes a working cluster of
// one node that listens on loopback.
type Config struct {
	Node    string `yaml:"node"` // name; default: the host's
	Dir     string `yaml:"dir"`  // state of the node: identity, its member of the cluster store, socket
	Witness bool   `yaml:"witness,omitempty"`
	// Insecure allows listeners beyond loopback although nothing is encrypted or checked yet.
	Insecure bool `yaml:"insecure,omitempty"`

	API    string `yaml:"api"`    // host:port of the API
	Data   string `yaml:"data"`   // host:port of replica sessions
	NBD    string `yaml:"nbd"`    // host:port of the NBD server; "none": only the socket
	Socket string `yaml:"socket"` // of the NBD server; default: nbd.sock in dir

	Etcd EtcdConfig `yaml:"etcd,omitempty"`

	// StoreBackend says how pools do their I/O: pool (plain calls by several threads), uring, or auto (uring where
	// the kernel allows it).
	StoreBackend string `yaml:"storeBackend"`

	PingTimeout Duration `yaml:"pingTimeout"`
	IdleDetach  Duration `yaml:"idleDetach"`
	LogLevel    string   `yaml:"logLevel"`
	LogFormat   string   `yaml:"logFormat"` // text or json
}

// EtcdConfig says where the cluster store is.
type EtcdConfig struct {
	// Endpoints of an etcd that runs elsewhere. Empty: the nodes run it.
	Endpoints []string `yaml:"endpoints,omitempty"`
	// Members names the nodes that run a member, each with the host:port for the other members. 1, 3 or 5.
	Members map[string]string `yaml:"members,omitempty"`
	// Clients gives the host:port at which each member serves the nodes.
	Clients map[string]string `yaml:"clients,omitempty"`
	// Token keeps members of different clusters apart; the same in all nodes of one.
	Token string `yaml:"token,omitempty"`
}

// Duration is a time.Duration that reads "5s".
type Duration time.Duration

// UnmarshalYAML reads a duration.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return fault.New(fault.Invalid, "read duration "+n.Value, "write it like 5s or 500ms")
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// Default is the configuration of a node that is told nothing.
func Default() Config {
	host, err := os.Hostname()
	if err != nil {
		host = "node"
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	dir := "/var/lib/samovar"
	if os.Geteuid() != 0 {
		if home, err := os.UserHomeDir(); err == nil {
			dir = filepath.Join(home, ".local", "share", "samovar")
		}
	}
	return Config{
		Node: host, Dir: dir, API: "127.0.0.1:7700", Data: "127.0.0.1:7701", NBD: "127.0.0.1:10809",
		PingTimeout: Duration(5 * time.Second), IdleDetach: Duration(5 * time.Second),
		StoreBackend: store.BackendPool, LogLevel: "info", LogFormat: "text",
	}
}

// ReadConfig reads a configuration file over the defaults.
func ReadConfig(path string) (Config, error) {
	c := Default()
	op := "read configuration " + path
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, fault.New(fault.NotFound, op, "there is no such file")
	}
	if err != nil {
		return c, fault.Wrap(fault.IO, op, err)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fault.Wrap(fault.Invalid, op, err)
	}
	return c, nil
}

var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Check completes the configuration and says what is wrong with it.
func (c *Config) Check() error {
	bad := func(what, text string) error { return fault.New(fault.Invalid, "configuration: "+what, text) }
	if !nodeName.MatchString(c.Node) {
		return bad("node "+c.Node, "a name has 1 to 63 small letters, digits and hyphens")
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return bad("dir "+c.Dir, err.Error())
	}
	c.Dir = dir
	if c.Socket == "" {
		c.Socket = filepath.Join(dir, "nbd.sock")
	}
	if len(c.Socket) > 100 {
		return bad("socket "+c.Socket, "the path of a unix socket has at most 100 bytes; set a shorter one")
	}
	for what, at := range map[string]string{"api": c.API, "data": c.Data, "nbd": c.NBD} {
		if what == "nbd" && at == "none" {
			continue
		}
		if err := c.checkListener(what, at, what != "nbd"); err != nil {
			return err
		}
	}
	if t := time.Duration(c.PingTimeout); t < time.Second || t > 5*time.Minute {
		return bad("pingTimeout "+t.String(), "take 1s to 5m")
	}
	if t := time.Duration(c.IdleDetach); t < 0 || t > time.Hour {
		return bad("idleDetach "+t.String(), "take 0s to 1h")
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return bad("logLevel "+c.LogLevel, "take debug, info, warn or error")
	}
	if !slices.Contains([]string{store.BackendAuto, store.BackendURing, store.BackendPool}, c.StoreBackend) {
		return bad("storeBackend "+c.StoreBackend, "take pool, uring or auto")
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return bad("logFormat "+c.LogFormat, "take text or json")
	}
	return c.Etcd.check(c)
}

// checkListener checks an address. Other nodes are told some: those must lead to this node from elsewhere too.
func (c *Config) checkListener(what, at string, told bool) error {
	op := "configuration: " + what + " " + at
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return fault.New(fault.Invalid, op, "write it as host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fault.New(fault.Invalid, op, "the port is a number from 1 to 65535")
	}
	ip := net.ParseIP(host)
	if told && c.Insecure && (host == "" || ip != nil && ip.IsUnspecified()) {
		return fault.New(fault.Invalid, op, "other nodes are told this address: write the one under which they reach this node")
	}
	if c.Insecure || host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fault.New(fault.Permission, op,
		"links are not encrypted and nobody is asked who they are yet: listeners beyond loopback need insecure (--insecure), on a network that you trust")
}

func (e *EtcdConfig) check(c *Config) error {
	bad := func(text string) error { return fault.New(fault.Invalid, "configuration: etcd", text) }
	if len(e.Endpoints) > 0 {
		if len(e.Members)+len(e.Clients) > 0 {
			return bad("either endpoints of an etcd that runs elsewhere, or members")
		}
		return nil
	}
	if len(e.Members) == 0 {
		e.Members = map[string]string{c.Node: "127.0.0.1:7703"}
		e.Clients = map[string]string{c.Node: "127.0.0.1:7702"}
	}
	if n := len(e.Members); n != 1 && n != 3 && n != 5 {
		return bad("a cluster has 1, 3 or 5 members")
	}
	for name := range e.Clients {
		if e.Members[name] == "" {
			return bad("clients names " + name + ", which is not among the members")
		}
	}
	for name, at := range e.Members {
		if !nodeName.MatchString(name) {
			return bad("member " + name + ": a name has 1 to 63 small letters, digits and hyphens")
		}
		if e.Clients[name] == "" {
			return bad("member " + name + " has no address under clients")
		}
		if name == c.Node {
			for _, own := range []string{at, e.Clients[name]} {
				if err := c.checkListener("etcd", own, true); err != nil {
					return err
				}
			}
		}
	}
	if e.Token == "" {
		e.Token = "samovar"
	}
	if c.Witness && e.Members[c.Node] == "" {
		return bad("a witness is a member of the cluster store; node " + c.Node + " is not among the members")
	}
	return nil
}

// endpoints lists where the cluster store is reached, this node's own member first.
func (c *Config) endpoints() []string {
	if len(c.Etcd.Endpoints) > 0 {
		return c.Etcd.Endpoints
	}
	var names []string
	for name := range c.Etcd.Clients {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if (a == c.Node) != (b == c.Node) {
			if a == c.Node {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	var out []string
	for _, name := range names {
		out = append(out, c.Etcd.Clients[name])
	}
	return out
}
