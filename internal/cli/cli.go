// Package cli is the command line: it parses, asks the cluster through the API's client alone, and prints tables,
// JSON or YAML for people and scripts.
//
//	arguments -> cobra -> session -> api/client -> resource -> table | json | yaml
//	                         |
//	                         +-- error -> "samovar: what, why (the way out)" + exit code, by one table
//
// It must not know the cluster's inside: nothing here that the API does not tell. Commands that run a daemon, a
// view or a benchmark are made elsewhere and handed in.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"samovar/internal/fault"
)

// Streams are the surroundings of a command.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
	// InTerminal, OutTerminal and ErrTerminal tell whether a person sits there.
	InTerminal, OutTerminal, ErrTerminal bool
	// Env looks up the environment; nil: os.Getenv.
	Env func(string) string
	// Zone is where times are shown; nil: time.Local.
	Zone *time.Location
	// Refresh is how often a watched list looks again without being told of a change, for what changes without an
	// event, like progress. 0: 2 seconds.
	Refresh time.Duration
}

// Standard are the streams of this process.
func Standard() Streams {
	return Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, InTerminal: IsTerminal(os.Stdin),
		OutTerminal: IsTerminal(os.Stdout), ErrTerminal: IsTerminal(os.Stderr)}
}

// Options are what the program adds to the commands of this package.
type Options struct {
	Version string           // of this binary
	Extra   []*cobra.Command // further commands: serve, dev, bench ...
}

// New makes the root command.
func New(streams Streams, options Options) *cobra.Command {
	if streams.Env == nil {
		streams.Env = os.Getenv
	}
	if streams.Zone == nil {
		streams.Zone = time.Local
	}
	if streams.Refresh == 0 {
		streams.Refresh = 2 * time.Second
	}
	streams.Err = &shared{w: streams.Err} // a client tells of nodes from its own goroutines
	s := &session{streams: streams, version: options.Version}
	root := group("samovar", "Replicated block volumes on ordinary machines")
	root.Long = `Samovar keeps block volumes on several ordinary machines at once.

Exit codes: 0 done, 1 failure, 2 usage, 3 not found, 4 not available or time-out.`
	root.Example = `  samovar status
  samovar pool create n1 /srv/samovar/ssd1 --name ssd1
  samovar volume create tea --size 10GiB --replicas 2
  samovar volume attach tea
  samovar volume list --watch
  SAMOVAR_ENDPOINT=n1:7700,n2:7700 samovar node list -o json`
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetFlagErrorFunc(usage)
	endpoint := streams.Env("SAMOVAR_ENDPOINT")
	if endpoint == "" {
		endpoint = "127.0.0.1:7700"
	}
	flags := root.PersistentFlags()
	flags.StringVar(&s.endpoint, "endpoint", endpoint, "nodes to ask, the first that answers: host:port[,host:port...]; also SAMOVAR_ENDPOINT")
	flags.DurationVar(&s.timeout, "timeout", 30*time.Second, "how long a call may take")
	root.AddCommand(nodeCommands(s), poolCommands(s), volumeCommands(s), statusCommand(s), eventsCommand(s), versionCommand(s))
	root.AddCommand(options.Extra...)
	return root
}

// Execute runs a root command with arguments, prints its error, and returns the exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(root.ErrOrStderr(), Message(err))
	}
	return ExitCode(err)
}

// group makes a command that only has commands under it.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, SuggestionsMinimumDistance: 2, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usage(cmd, fmt.Errorf("%s", text))
	}}
}

// takes makes a check for arguments with the names given: exactly those.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usage(cmd, fmt.Errorf("%s is missing", names[len(args)]))
		case len(args) > len(names):
			return usage(cmd, fmt.Errorf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}

// usage makes an error of a wrong command line.
func usage(cmd *cobra.Command, err error) error {
	path := strings.TrimPrefix(cmd.CommandPath(), "samovar ")
	if path == "samovar" {
		path = ""
	}
	return hinted{fault.New(fault.Invalid, path, err.Error()), "see: " + cmd.CommandPath() + " --help"}
}

// shared is a writer for many goroutines.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// IsTerminal tells whether f is a terminal. It takes other character devices for one too, except the null
// device; all that follows from a wrong answer is a question that nobody answers.
func IsTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
