"""Keeps as many pods as there is work for, within a budget."""
