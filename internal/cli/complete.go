package cli

import (
	"context"

	"github.com/spf13/cobra"

	"samovar/internal/api/client"
	"samovar/internal/resource"
)

type completion = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

func (s *session) completeVolumes() completion {
	return completes(s, (*client.Client).Volumes, func(v resource.Volume) string { return v.Name })
}

func (s *session) completePools() completion {
	return completes(s, (*client.Client).Pools, func(p resource.Pool) string { return p.Name })
}

func (s *session) completeNodes() completion {
	return completes(s, (*client.Client).Nodes, func(n resource.Node) string { return n.Name })
}

// completes lets a shell complete a command's first argument by the names of what list gives.
func completes[T any](s *session, list func(*client.Client, context.Context) ([]T, error), name func(T) string) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := s.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer c.Close()
		all, err := list(c, cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names := make([]string, len(all))
		for i, one := range all {
			names[i] = name(one)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
