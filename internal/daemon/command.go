package daemon

import (
	"io"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Command is "samovar serve".
func Command(version string, stderr io.Writer) *cobra.Command {
	var path string
	var flags Config
	var ping, idle time.Duration
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one node",
		Long: `Run one node. Without a configuration it is a cluster of its own that listens on loopback; give it
a pool with "samovar pool create". Flags go before the configuration file, the file before the defaults.`,
		Example: `  samovar serve
  samovar serve --config /etc/samovar.yaml
  samovar serve --node n1 --dir /srv/samovar --etcd-endpoints 10.0.0.1:2379,10.0.0.2:2379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := Default()
			if path != "" {
				var err error
				if c, err = ReadConfig(path); err != nil {
					return err
				}
			}
			flags.PingTimeout, flags.IdleDetach = Duration(ping), Duration(idle)
			override(cmd, &c, &flags)
			if err := c.Check(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return Run(ctx, c, version, logger(c, stderr))
		},
	}
	d := Default()
	f := cmd.Flags()
	f.StringVar(&path, "config", "", "configuration `FILE` (YAML)")
	f.StringVar(&flags.Node, "node", d.Node, "name of this node")
	f.StringVar(&flags.Dir, "dir", d.Dir, "directory for this node's state")
	f.StringVar(&flags.API, "api", d.API, "address of the API")
	f.StringVar(&flags.Data, "data", d.Data, "address of replica sessions")
	f.StringVar(&flags.NBD, "nbd", d.NBD, "address of the NBD server, or none")
	f.StringVar(&flags.Socket, "socket", "", "unix socket of the NBD server (default: nbd.sock in the directory)")
	f.StringSliceVar(&flags.Etcd.Endpoints, "etcd-endpoints", nil, "use an etcd that runs elsewhere")
	f.DurationVar(&ping, "ping-timeout", time.Duration(d.PingTimeout), "silence after which a replica is given up; leases derive from it")
	f.DurationVar(&idle, "idle-detach", time.Duration(d.IdleDetach), "time from the last client to the end of an automatic attachment")
	f.BoolVar(&flags.Insecure, "insecure", false, "allow listeners beyond loopback, on a network that you trust")
	f.BoolVar(&flags.Witness, "witness", false, "a vote in the cluster store and no pools")
	f.StringVar(&flags.LogLevel, "log-level", d.LogLevel, "debug, info, warn or error")
	f.StringVar(&flags.LogFormat, "log-format", d.LogFormat, "text or json")
	return cmd
}

// override puts the flags that were given over the configuration.
func override(cmd *cobra.Command, c, flags *Config) {
	set := map[string]func(){
		"node": func() { c.Node = flags.Node }, "dir": func() { c.Dir = flags.Dir },
		"api": func() { c.API = flags.API }, "data": func() { c.Data = flags.Data },
		"nbd": func() { c.NBD = flags.NBD }, "socket": func() { c.Socket = flags.Socket },
		"etcd-endpoints": func() { c.Etcd = EtcdConfig{Endpoints: flags.Etcd.Endpoints} },
		"ping-timeout":   func() { c.PingTimeout = flags.PingTimeout },
		"idle-detach":    func() { c.IdleDetach = flags.IdleDetach },
		"insecure":       func() { c.Insecure = flags.Insecure }, "witness": func() { c.Witness = flags.Witness },
		"log-level": func() { c.LogLevel = flags.LogLevel }, "log-format": func() { c.LogFormat = flags.LogFormat },
	}
	for name, f := range set {
		if cmd.Flags().Changed(name) {
			f()
		}
	}
}

func logger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Check has refused anything else
	}
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
