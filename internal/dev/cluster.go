// Package dev runs a whole cluster on one machine, one process a node, for trying, for the demo and for tests with
// real processes. It starts the samovar binary with configuration files that it writes, and reaches the cluster
// through its API like any face.
package dev

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"

	"samovar/internal/api/client"
	"samovar/internal/daemon"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// Options of a Cluster.
type Options struct {
	Binary  string // the samovar binary
	Dir     string // everything is below it
	Nodes   int    // data nodes; 1, 3 or 5 of all nodes are members of the cluster store
	Witness bool   // one more node without a pool
	Pools   bool   // make a pool on every data node
	// PingTimeout of the nodes; 0: their default.
	PingTimeout time.Duration
	// Hosts gives each node an address of its own; empty: loopback.
	Hosts []string
	// Exec starts the command of a node; nil: as it is. Tests put it into a network namespace.
	Exec func(node int, cmd *exec.Cmd) *exec.Cmd
	// Configure changes the configuration of a node before it is written; nil: as it is.
	Configure func(node int, c *daemon.Config)
	LogLevel  string
}

// Node is one process.
type Node struct {
	Name   string
	Dir    string
	Config daemon.Config
	Log    string // file

	mu   sync.Mutex // guards what follows
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // how it ended
}

// Cluster is a set of nodes on this machine.
type Cluster struct {
	opts  Options
	Nodes []*Node
}

// New lays a cluster out in its directory; one that is there already is taken as it is.
func New(o Options) (*Cluster, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "use directory "+o.Dir, err)
	}
	o.Dir = dir
	c := &Cluster{opts: o}
	total := o.Nodes
	if o.Witness {
		total++
	}
	if total < 1 || total > 32 {
		return nil, fault.New(fault.Invalid, "make a cluster", "take 1 to 32 nodes")
	}
	for i := range total {
		name := fmt.Sprintf("n%d", i+1)
		if i >= o.Nodes {
			name = "witness"
		}
		c.Nodes = append(c.Nodes, &Node{Name: name, Dir: filepath.Join(dir, name)})
	}
	if _, err := os.Stat(c.Nodes[0].configPath()); err == nil {
		return c, c.read()
	}
	return c, c.write()
}

func (n *Node) configPath() string { return filepath.Join(n.Dir, "samovar.yaml") }

func (c *Cluster) read() error {
	for _, n := range c.Nodes {
		cfg, err := daemon.ReadConfig(n.configPath())
		if err != nil {
			return fault.Wrap(fault.KindOf(err), "use the cluster in "+c.opts.Dir+" (was it made with another number of nodes?)", err)
		}
		n.Config, n.Log = cfg, filepath.Join(n.Dir, "log")
		if err := n.Config.Check(); err != nil {
			return err
		}
	}
	return nil
}

// members is how many nodes run a member of the cluster store.
func members(nodes int) int {
	switch {
	case nodes >= 5:
		return 5
	case nodes >= 3:
		return 3
	}
	return 1
}

func (c *Cluster) write() error {
	host := func(i int) string {
		if i < len(c.opts.Hosts) {
			return c.opts.Hosts[i]
		}
		return "127.0.0.1"
	}
	ports, err := freePorts(5*len(c.Nodes), len(c.opts.Hosts) == 0)
	if err != nil {
		return err
	}
	at := func(i, which int) string { return fmt.Sprintf("%s:%d", host(i), ports[5*i+which]) }
	store := daemon.EtcdConfig{Members: map[string]string{}, Clients: map[string]string{}, Token: filepath.Base(c.opts.Dir)}
	voters := members(len(c.Nodes))
	for i, n := range c.Nodes {
		// A witness is always a voter.
		if i < voters && !(c.opts.Witness && i == voters-1 && i != len(c.Nodes)-1) || n.Name == "witness" {
			store.Members[n.Name], store.Clients[n.Name] = at(i, 3), at(i, 4)
		}
	}
	for i, n := range c.Nodes {
		cfg := daemon.Default()
		cfg.Node, cfg.Dir, cfg.Witness = n.Name, n.Dir, n.Name == "witness"
		cfg.API, cfg.Data, cfg.NBD = at(i, 0), at(i, 1), at(i, 2)
		cfg.Etcd, cfg.Insecure = store, len(c.opts.Hosts) > 0
		cfg.Socket = filepath.Join(n.Dir, "nbd.sock")
		if len(cfg.Socket) > 100 {
			// A deep directory: the path of a unix socket is short.
			cfg.Socket = filepath.Join(os.TempDir(), fmt.Sprintf("samovar-%d.sock", ports[5*i]))
		}
		if c.opts.PingTimeout > 0 {
			cfg.PingTimeout = daemon.Duration(c.opts.PingTimeout)
		}
		if c.opts.LogLevel != "" {
			cfg.LogLevel = c.opts.LogLevel
		}
		if c.opts.Configure != nil {
			c.opts.Configure(i, &cfg)
		}
		b, err := yaml.Marshal(cfg)
		if err != nil {
			return fault.Wrap(fault.Internal, "write configuration", err)
		}
		if err := os.MkdirAll(n.Dir, 0o700); err != nil {
			return fault.Wrap(fault.IO, "make directory of node "+n.Name, err)
		}
		if err := os.WriteFile(n.configPath(), b, 0o600); err != nil {
			return fault.Wrap(fault.IO, "write configuration of node "+n.Name, err)
		}
	}
	return c.read()
}

// freePorts finds n ports that are free now, on loopback; elsewhere any will do. They lie below those that the kernel
// gives to outgoing connections, which could take the port of a node while it is down.
func freePorts(n int, check bool) ([]int, error) {
	const first, last = 12000, 32000
	var ports []int
	if !check {
		for i := range n {
			ports = append(ports, 7700+i)
		}
		return ports, nil
	}
	var held []net.Listener
	defer func() {
		for _, ln := range held {
			ln.Close() // it was only held
		}
	}()
	var why error
	for range 100 * n {
		port := first + rand.IntN(last-first)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			why = err
			continue
		}
		held, ports = append(held, ln), append(ports, port)
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, fault.Wrap(fault.Unavailable, "find free ports", why)
}

// Start starts all nodes, waits until the cluster answers, and makes the pools that it lacks.
func (c *Cluster) Start(ctx context.Context) error {
	for i := range c.Nodes {
		if err := c.StartNode(i); err != nil {
			return err
		}
	}
	if err := c.Await(ctx, "all nodes are online", func(ctx context.Context, api *client.Client) error {
		nodes, err := api.Nodes(ctx)
		online := 0
		for _, n := range nodes {
			if n.Online {
				online++
			}
		}
		if err == nil && online < len(c.Nodes) {
			err = fmt.Errorf("%d of %d nodes are online", online, len(c.Nodes))
		}
		return err
	}); err != nil {
		return err
	}
	if !c.opts.Pools {
		return nil
	}
	return c.makePools(ctx)
}

func (c *Cluster) makePools(ctx context.Context) error {
	api, err := c.Client()
	if err != nil {
		return err
	}
	defer api.Close()
	for _, n := range c.Nodes {
		if n.Config.Witness {
			continue
		}
		name := "pool-" + n.Name
		_, err := api.Pool(ctx, name)
		if fault.Is(err, fault.NotFound) {
			_, err = api.CreatePool(ctx, resource.NewPool{Node: n.Name, Dir: filepath.Join(n.Dir, "pool"), Name: name})
		}
		if err != nil {
			return err
		}
	}
	return c.Await(ctx, "all pools are online", func(ctx context.Context, api *client.Client) error {
		pools, err := api.Pools(ctx)
		for _, p := range pools {
			if err == nil && !p.Online {
				err = fmt.Errorf("pool %s: %s", p.Name, p.Cause)
			}
		}
		return err
	})
}

// Client reaches the cluster through any of its nodes.
func (c *Cluster) Client() (*client.Client, error) {
	var at []string
	for _, n := range c.Nodes {
		at = append(at, n.Config.API)
	}
	return client.New(at, client.Options{Timeout: time.Minute, DialTimeout: time.Second})
}

// Await repeats a question until it is answered without an error.
func (c *Cluster) Await(ctx context.Context, what string, ask func(context.Context, *client.Client) error) error {
	api, err := c.Client()
	if err != nil {
		return err
	}
	defer api.Close()
	last := errors.New("not asked yet")
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ask(try, api)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		for _, n := range c.Nodes {
			if ended, how := n.ended(); ended && how != nil && !n.stopped() {
				return fault.New(fault.Unavailable, "wait until "+what, "node "+n.Name+" ended: "+how.Error()+"; its log is "+n.Log)
			}
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(fault.Unavailable, "wait until "+what, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// StartNode starts a node's process.
func (c *Cluster) StartNode(i int) error {
	n := c.Nodes[i]
	log, err := os.OpenFile(n.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fault.Wrap(fault.IO, "open log of node "+n.Name, err)
	}
	defer log.Close() // the process has its own
	cmd := exec.Command(c.opts.Binary, "serve", "--config", n.configPath())
	cmd.Stdout, cmd.Stderr = log, log
	// A terminal's Ctrl-C reaches the cluster's owner, who ends the nodes in order. They end if it is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if c.opts.Exec != nil {
		cmd = c.opts.Exec(i, cmd)
	}
	if err := cmd.Start(); err != nil {
		return fault.Wrap(fault.IO, "start node "+n.Name, err)
	}
	done := make(chan struct{})
	n.mu.Lock()
	n.cmd, n.done, n.err = cmd, done, nil
	n.mu.Unlock()
	go func() {
		err := cmd.Wait()
		n.mu.Lock()
		n.err = err
		n.mu.Unlock()
		close(done)
	}()
	return nil
}

// ended tells whether the node's process has ended, and how.
func (n *Node) ended() (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.done == nil {
		return false, nil
	}
	select {
	case <-n.done:
		return true, n.err
	default:
		return false, nil
	}
}

// stopped tells whether a signal of ours ended it.
func (n *Node) stopped() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	var exit *exec.ExitError
	return errors.As(n.err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled()
}

// Signal sends a signal to a node's process: SIGKILL, SIGSTOP, SIGCONT, SIGTERM.
func (n *Node) Signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return fault.New(fault.Invalid, "signal node "+n.Name, "it was not started")
	}
	return n.cmd.Process.Signal(s)
}

// Kill ends a node as a crash would, and waits for it.
func (n *Node) Kill() error {
	if err := n.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-n.done
	return nil
}

// Stop ends a node in order; after the deadline of ctx it is killed, which is an error.
func (n *Node) Stop(ctx context.Context) error {
	n.mu.Lock()
	started := n.cmd != nil
	n.mu.Unlock()
	if !started {
		return nil
	}
	for _, s := range []syscall.Signal{syscall.SIGCONT, syscall.SIGTERM} {
		if err := n.Signal(s); err != nil {
			if errors.Is(err, os.ErrProcessDone) {
				return nil
			}
			return err
		}
	}
	select {
	case <-n.done:
		return nil
	case <-ctx.Done():
		return errors.Join(fault.New(fault.Unavailable, "stop node "+n.Name, "it did not end in time and was killed"), n.Kill())
	}
}

// Stop ends all nodes at once.
func (c *Cluster) Stop(ctx context.Context) error {
	errs := make([]error, len(c.Nodes))
	var all sync.WaitGroup
	for i, n := range c.Nodes {
		all.Go(func() { errs[i] = n.Stop(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}
