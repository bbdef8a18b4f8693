"""What several tests share, and no fixture brings: worlds, proxies, readers of pages and screens."""
