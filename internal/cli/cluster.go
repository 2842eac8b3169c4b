package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/resource"
)

func statusCommand(s *session) *cobra.Command {
	return s.lists(&cobra.Command{
		Use: "status", Short: "Show the cluster at a glance", Args: takes(),
		Example: "  samovar status\n  samovar status --watch\n  samovar status -o json",
		RunE: shown(s, func(ctx context.Context, c *client.Client, _ []string) (resource.Status, error) { return c.Status(ctx) },
			drawStatus, nil),
	})
}

func drawStatus(w io.Writer, st resource.Status) {
	health := "healthy"
	if !st.Healthy {
		health = "NOT HEALTHY"
	}
	t := newSheet()
	t.fact("Cluster", st.Cluster)
	t.fact("Health", health)
	t.fact("Cluster store", st.Store)
	t.fact("Nodes", fmt.Sprintf("%d, %d online", st.Nodes, st.Online))
	t.fact("Pools", fmt.Sprintf("%d, %s free of %s", st.Pools, formatSize(st.Free), formatSize(st.Total)))
	t.fact("Volumes", fmt.Sprintf("%d, %d attached, %d not redundant", st.Volumes, st.Attached, st.Degraded))
	t.fact("Survives", st.Survives)
	t.write(w)
	if len(st.Problems) > 0 {
		fmt.Fprintln(w, "\nProblems:")
		for _, problem := range st.Problems {
			fmt.Fprintln(w, "  "+printable(problem))
		}
	}
}

// versions are the version of the command and of the node that it asks.
type versions struct {
	Command resource.Version  `json:"command"`
	Node    *resource.Version `json:"node,omitempty"`
	Cause   string            `json:"cause,omitempty"` // why there is no answer of a node
}

func versionCommand(s *session) *cobra.Command {
	return s.prints(&cobra.Command{
		Use: "version", Short: "Show the versions of this command and of the node", Args: takes(),
		Long:    "Show the versions of this command and of the node that answers. That no node answers is no failure here.",
		Example: "  samovar version\n  samovar version -o json",
		RunE: s.run(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			v := versions{Command: resource.Version{Version: s.version, Go: runtime.Version()}}
			if node, err := c.Version(cmd.Context()); err == nil {
				v.Node = &node
			} else {
				v.Cause = err.Error()
			}
			return s.print(v, func(w io.Writer) { drawVersions(w, v) })
		}),
	})
}

func drawVersions(w io.Writer, v versions) {
	t := newSheet()
	t.fact("This command", fmt.Sprintf("%s (%s)", v.Command.Version, v.Command.Go))
	if v.Node == nil {
		t.fact("Node", "none: "+v.Cause)
		t.write(w)
		return
	}
	t.fact("Node "+v.Node.Node, fmt.Sprintf("%s (%s)", v.Node.Version, v.Node.Go))
	t.fact("Cluster", v.Node.Cluster)
	t.fact("Store format", fmt.Sprint(v.Node.Store))
	t.fact("Peer protocol", fmt.Sprint(v.Node.Protocol))
	t.write(w)
}
