"""Say what another cooling or inlet temperature would change."""
